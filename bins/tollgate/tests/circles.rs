//! No module needs one that needs it. What a module takes of others is read from its `use` lines and paths.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::Visit;
use syn::{Attribute, UseTree};

use super::layers::{packages, root};

#[test]
fn modules_form_no_circle() {
    for folder in packages() {
        let circles = circles(&uses(&root().join(&folder).join("src")));
        assert_eq!(circles, [], "{folder}");
    }
}

/// The floors are those of the list in architecture.md.
#[test]
fn a_module_of_the_store_uses_no_floor_above_its_own() {
    let text = fs::read_to_string(root().join("docs/internals/architecture.md")).unwrap();
    let (_, table) = text.split_once("The floors\nof the store").unwrap();
    let (table, _) = table.split_once("\n\nAnd those").unwrap();
    let mut floors: BTreeMap<String, u32> = BTreeMap::new();
    for row in table.split("\n- ").skip(1) {
        let (floor, row) = row.split_once(": ").unwrap();
        let (modules, _) = row.split_once(".").unwrap();
        let names = modules.split('`').skip(1).step_by(2);
        floors.extend(names.map(|name| (name.to_owned(), floor.parse().unwrap())));
    }
    let mut wrong = Vec::new();
    for (module, used) in uses(&root().join("crates/store/src")) {
        let Some(name) = module.first() else { continue };
        let floor = floors.get(name).unwrap_or_else(|| panic!("{name} is on no floor"));
        let used = used.iter().filter(|used| used.first().is_some_and(|top| floors[top] > *floor));
        wrong.extend(used.map(|used| format!("{} uses {}", module.join("::"), used.join("::"))));
    }
    assert_eq!(wrong, <Vec<String>>::new());
}

/// A module by its path from the root of its crate, which is empty.
type Module = Vec<String>;

/// The modules that each module of a crate uses.
fn uses(src: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    find(src, &mut Vec::new(), &mut files);
    let modules: BTreeSet<Module> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut uses = BTreeMap::new();
    for (module, source) in files {
        let names = BTreeMap::new();
        let mut seen = UseVisitor {
            module: &module,
            modules: &modules,
            names,
            within_file: 0,
            found: BTreeSet::new(),
        };
        seen.visit_file(&syn::parse_file(&source).unwrap());
        let mut found = seen.found;
        found.remove(&module);
        // A package may have a library and a program.
        uses.entry(module).or_insert_with(BTreeSet::new).extend(found);
    }
    uses
}

/// The files below a folder, with the modules that they are.
fn find(folder: &Path, above: &mut Module, files: &mut Vec<(Module, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            above.push(name);
            find(&path, above, files);
            above.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut module = above.clone();
            if !matches!(name.as_str(), "lib" | "main" | "mod") {
                module.push(name);
            }
            files.push((module, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The modules that one module takes something of, as they are seen.
struct UseVisitor<'a> {
    module: &'a Module,
    modules: &'a BTreeSet<Module>,
    /// The modules that `use` lines of the file have named, with the words for them.
    names: BTreeMap<String, Module>,
    /// The number of modules within the file that are being visited.
    within_file: usize,
    found: BTreeSet<Module>,
}

impl UseVisitor<'_> {
    /// Notes the module that a path of this one leads to, if it leads to one of the crate.
    fn note(&mut self, path: &[String]) -> Option<Module> {
        let keywords = ["crate", "self", "super"];
        let is_keyword = |part: &&String| keywords.contains(&part.as_str());
        let (mut full, known) = match path.first().map(String::as_str)? {
            "crate" => (Vec::new(), 0),
            "self" => (self.module.clone(), 0),
            "super" => {
                let above = path.iter().take_while(|part| *part == "super").count();
                // The innermost lead no further than to the file.
                let above = above.saturating_sub(self.within_file);
                let left = self.module.len().checked_sub(above)?;
                (self.module.iter().take(left).cloned().collect(), 0)
            }
            first => {
                let child: Module =
                    self.module.iter().chain([&first.to_owned()]).cloned().collect();
                match self.names.get(first) {
                    Some(named) => (named.clone(), 1),
                    None if self.modules.contains(&child) => (child, 1),
                    None => return None,
                }
            }
        };
        full.extend(path.iter().skip(known).skip_while(is_keyword).cloned());
        while !self.modules.contains(&full) {
            full.pop()?;
        }
        self.found.insert(full.clone());
        Some(full)
    }

    fn note_tree(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        match tree {
            UseTree::Path(one) => {
                path.push(one.ident.to_string());
                self.note_tree(&one.tree, path);
                path.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_tree(tree, path));
            }
            UseTree::Name(name) => self.note_named(path, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.note_named(path, &rename.ident, &rename.rename),
            UseTree::Glob(_) => drop(self.note(path)),
        }
    }

    fn note_named(&mut self, path: &mut Vec<String>, name: &syn::Ident, word: &syn::Ident) {
        if name != "self" {
            path.push(name.to_string());
        }
        if let Some(module) = self.note(path)
            && module.last() == path.last()
        {
            let word = if name == "self" { module.last().cloned() } else { Some(word.to_string()) };
            self.names.extend(word.map(|word| (word, module)));
        }
        if name != "self" {
            path.pop();
        }
    }
}

impl<'ast> Visit<'ast> for UseVisitor<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        // One word is a name that is in scope.
        if parts.len() > 1 {
            self.note(&parts);
        }
        syn::visit::visit_path(self, path);
    }

    /// The arguments of a macro are no syntax tree: the paths among them are read as text.
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let text = called.tokens.to_string().replace(" :: ", "::");
        for path in text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
            let parts: Vec<_> = path.split("::").map(str::to_owned).collect();
            if parts.len() > 1 && parts.iter().all(|part| !part.is_empty()) {
                self.note(&parts);
            }
        }
        syn::visit::visit_macro(self, called);
    }

    /// A visibility needs no module.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// A module within a file belongs to that file, and tests may use everything.
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !item.attrs.iter().any(is_for_tests) {
            self.within_file += 1;
            syn::visit::visit_item_mod(self, item);
            self.within_file -= 1;
        }
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
}

/// The circles: sets of modules of which each needs all others, by whatever way.
fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<String>> {
    let reaches: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (module, reached(uses, module))).collect();
    let reach = |from: &Module, to: &Module| reaches.get(from).is_some_and(|all| all.contains(to));
    let circle = |module: &Module| -> BTreeSet<String> {
        let both_ways = uses.keys().filter(|other| reach(module, other) && reach(other, module));
        both_ways.map(|other| other.join("::")).collect()
    };
    let all: BTreeSet<_> = uses.keys().map(circle).filter(|circle| circle.len() > 1).collect();
    all.into_iter().collect()
}

/// All that a module needs.
fn reached<'a>(
    uses: &'a BTreeMap<Module, BTreeSet<Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let used = uses.get(module).into_iter().flatten();
        next.extend(used.filter(|used| seen.insert(*used)));
    }
    seen
}

#[test]
fn a_circle_is_found_by_whatever_way_it_goes() {
    let module = |name: &str| vec![name.to_owned()];
    let of = |pairs: &[(&str, &[&str])]| -> BTreeMap<Module, BTreeSet<Module>> {
        pairs
            .iter()
            .map(|(name, used)| (module(name), used.iter().map(|one| module(one)).collect()))
            .collect()
    };
    let straight = of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    assert_eq!(circles(&straight), []);
    let round = of(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
    let all: BTreeSet<_> = ["a", "b", "c"].map(str::to_owned).into();
    assert_eq!(circles(&round), [all]);
}
