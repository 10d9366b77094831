//! Writes the pages of `docs/features/providers/`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/features/providers");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in tollgate_provider::provider_pages() {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}
