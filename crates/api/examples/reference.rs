//! Makes the lists in the pages `docs/api` again from the OpenAPI document. With `--check` it changes nothing, and fails
//! where a page is stale.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use tollgate_api::{openapi, reference_page};

fn main() -> Result<(), Box<dyn Error>> {
    let only_checks = env::args().any(|argument| argument == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api");
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let page = fs::read_to_string(&path)?;
        let made = reference_page(openapi(), &page)
            .map_err(|cause| format!("{}: {cause}", path.display()))?;
        if made != page && only_checks {
            return Err(format!("{} is stale", path.display()).into());
        }
        if made != page {
            fs::write(&path, made)?;
            println!("{}", path.display());
        }
    }
    Ok(())
}
