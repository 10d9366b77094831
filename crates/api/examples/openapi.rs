//! Prints the OpenAPI document.

fn main() {
    println!("{:#}", tollgate_api::openapi());
}
