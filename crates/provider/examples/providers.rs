//! Prints `docs/PROVIDERS.md`.

fn main() {
    print!("{}", tollgate_provider::ProvidersDocument);
}
