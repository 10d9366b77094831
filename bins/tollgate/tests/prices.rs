//! `tollgate prices` lists, imports and compares price lists without a server or a database.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Runs the program in a folder; returns its exit code and output.
fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let program = env!("CARGO_BIN_EXE_tollgate");
    let output =
        Command::new(program).args(arguments).current_dir(folder).env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// A folder with a catalogue file of one row, a configuration that names it, and a price list.
fn folder(input: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("tollgate.toml", "catalog = \"prices.json\"\n");
    let row = r#"{"provider": "openai", "models": ["m"], "prices": {"input": "2", "output": "8"}}"#;
    write("prices.json", &format!(r#"{{"rows": [{row}]}}"#));
    let prices = format!(r#"{{"input_mtok": {input}, "output_mtok": 8}}"#);
    let model = format!(r#"{{"id": "m", "match": {{"equals": "m"}}, "prices": {prices}}}"#);
    write("list.json", &format!(r#"[{{"id": "openai", "models": [{model}]}}]"#));
    folder
}

const IMPORT: [&str; 7] =
    ["--config", "tollgate.toml", "prices", "import", "--format", "genai-prices", "list.json"];

fn import(folder: &TempDir, more: &[&str]) -> (i32, String) {
    run(folder.path(), &[IMPORT.as_slice(), more].concat())
}

fn written(folder: &TempDir) -> String {
    std::fs::read_to_string(folder.path().join("prices.json")).unwrap()
}

#[test]
fn an_import_says_what_it_changes_and_keeps_the_past() {
    let folder = folder("3");
    let before = written(&folder);
    let (code, text) = import(&folder, &["--from", "2026-12-01", "--dry-run"]);
    assert_eq!((code, written(&folder)), (0, before), "{text}");
    assert!(text.contains("changed  openai m: input 2 -> 3"), "{text}");

    let (code, text) = import(&folder, &["--from", "2026-12-01"]);
    assert_eq!(code, 0, "{text}");
    let charged = |on: &str| {
        let arguments = ["--config", "tollgate.toml", "--json", "prices", "list", "--model", "m"];
        let (_, text) = run(folder.path(), &[arguments.as_slice(), &["--on", on]].concat());
        let row: Value = serde_json::from_str(&text).unwrap();
        row["prices"]["input"].as_str().map(str::to_owned)
    };
    assert_eq!(charged("2026-11-30").as_deref(), Some("2"));
    assert_eq!(charged("2026-12-01").as_deref(), Some("3"));

    let after = written(&folder);
    let (_, text) = import(&folder, &["--from", "2026-12-24"]);
    assert!(text.contains("added: 0, changed: 0, removed: 0"), "{text}");
    assert_eq!(written(&folder), after);
}

#[test]
fn what_is_no_price_list_is_not_imported() {
    let folder = folder("3");
    let before = written(&folder);
    for (format, text) in
        [("genai-prices", "[]"), ("litellm", r#"{"model": "m", "max_tokens": 1}"#)]
    {
        std::fs::write(folder.path().join("list.json"), text).unwrap();
        let (code, said) = run(
            folder.path(),
            &["prices", "import", "--format", format, "list.json", "--into", "prices.json"],
        );
        assert_eq!((code, written(&folder)), (1, before.clone()), "{said}");
        assert!(said.contains("list.json holds no price"), "{said}");
    }
    let (code, said) = run(folder.path(), &["prices", "list", "--model", "unheard-of"]);
    assert_eq!(code, 0);
    assert!(said.contains("There is no price of that model"), "{said}");
}

#[test]
fn a_change_that_is_too_large_is_written_only_when_it_is_accepted() {
    let folder = folder("20");
    let before = written(&folder);
    let (code, text) = import(&folder, &[]);
    assert_eq!((code, written(&folder)), (1, before), "{text}");
    assert!(text.contains("! changed  openai m: input 2 -> 20"), "{text}");
    assert_eq!(import(&folder, &["--max-factor", "10", "--dry-run"]).0, 0);
    assert_eq!(import(&folder, &["--accept"]).0, 0);
    assert!(written(&folder).contains("\"20\""));
}

#[test]
fn a_new_catalogue_file_begins_as_a_copy_of_the_built_in_one() {
    let folder = folder("3");
    let arguments = ["prices", "import", "--format", "genai-prices", "list.json"];
    let (code, text) = run(folder.path(), &arguments);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("--into FILE"), "{text}");
    let (code, text) =
        run(folder.path(), &[arguments.as_slice(), &["--into", "new.json"]].concat());
    assert_eq!(code, 0, "{text}");
    let (code, text) = run(folder.path(), &["prices", "check", "embedded", "new.json"]);
    assert_eq!((code, text.as_str()), (0, ""));
    // A service that runs as another user reads it.
    let file = folder.path().join("new.json");
    let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let again = [arguments.as_slice(), &["--into", "new.json", "--from", "2026-11-02"]].concat();
    let (code, text) = run(folder.path(), &again);
    assert_eq!((code, mode()), (0, 0o640), "{text}");
}

#[test]
fn a_model_that_cannot_be_read_is_named_without_being_asked_for_and_keeps_its_prices() {
    for figure in ["-1", "1e30", "\"dear\""] {
        let folder = folder(figure);
        let (code, text) = import(&folder, &[]);
        let note =
            "note: openai m: is left out, since it cannot be read: input_mtok is not a price: ";
        assert!(text.contains(&format!("{note}{figure}")), "{text}");
        assert_eq!(text.matches("input_mtok is not").count(), 1, "{text}");
        assert_eq!(code, 0, "{text}");
        assert!(written(&folder).contains(r#""prices": {"input": "2", "output": "8"}"#), "{text}");
        let (_, text) = import(&folder, &["--notes"]);
        assert_eq!(text.matches("input_mtok is not").count(), 1, "{text}");
    }
}

#[test]
fn a_provider_is_listed_with_the_prices_of_its_price_list() {
    let folder = folder("3");
    let house = "[providers.house]\nbase_url = \"https://house.example\"\n\
        dialect = \"openai\"\nprice_list = \"openai\"\n";
    let text = format!("catalog = \"prices.json\"\n{house}");
    std::fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let list = |more: &[&str]| {
        let arguments = ["--config", "tollgate.toml", "prices", "list"];
        run(folder.path(), &[arguments.as_slice(), more].concat()).1
    };
    assert!(list(&["--provider", "house"]).starts_with("openai m (catalog)"));
    assert!(list(&["--model", "m"]).starts_with("house (as openai) m (catalog)"));
}

#[test]
fn a_check_lists_disagreements_and_fails() {
    let folder = folder("3");
    let (code, text) =
        run(folder.path(), &["prices", "check", "prices.json", "genai-prices:list.json"]);
    assert_eq!((code, text.as_str()), (1, "openai m: input 2 against 3\n1 figures disagree.\n"));
}

#[test]
fn mistakes_in_the_catalogue_file_are_named() {
    let folder = folder("3");
    let zeros = r#"{"rows": [{"provider": "openai", "models": ["m"], "prices": {"input": "0"}}]}"#;
    std::fs::write(folder.path().join("prices.json"), zeros).unwrap();
    let (code, text) = run(folder.path(), &["--config", "tollgate.toml", "config", "check"]);
    assert_eq!(code, 1);
    assert!(text.contains("catalog: prices.json: rows[0] (openai m): "), "{text}");
}
