//! Holds docs/adding.md: its transport is the one that is built and measured here, and what it says
//! of the compiler and of commands is true.

use g2g::plan::TransportKind;
use strum::VariantArray as _;
use syn::{
    Arm, ExprMatch, Item, ItemImpl, Pat,
    visit::{self, Visit},
};

use crate::{
    architecture,
    common::{Rows, example, g2g, run, text},
};

/// Enums of which every `match` names all variants.
const ENUMS: [&str; 4] = ["TransportKind", "Operation", "Engine", "Collective"];

#[test]
fn the_document_shows_the_transport_that_is_built() {
    let document = include_str!("../../docs/adding.md");
    let (_, rest) = document.split_once("\n```rust\n").unwrap();
    let (code, _) = rest.split_once("```\n").unwrap();
    assert_eq!(code, include_str!("../programs/tcp.rs"));
}

#[test]
fn the_transport_of_the_document_is_measured_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    // A tail of 5 bytes is no whole word of the pattern; a third rank has no part in the case.
    let line = format!(
        "shm --numa 0:0 --ranks 3 --sizes 64K,1000005 --pattern one-way,both-ways --samples 20 \
         --no-report --output {}",
        output.display()
    );
    let result = run(example("tcp"), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    assert_eq!(rows.len(), 4);
    for row in 0..4 {
        if rows.cell(row, "pattern") == "one-way" {
            assert_eq!(rows.cell(row, "status"), "ok");
            assert!(rows.number(row, "bandwidth_gb_s") > 0.0);
        } else {
            assert_eq!(rows.cell(row, "status"), "skipped");
            assert!(rows.cell(row, "reason").contains("--pattern one-way"));
        }
    }
}

#[test]
fn each_transport_has_its_command() {
    for kind in TransportKind::VARIANTS {
        let help = run(g2g(), &format!("{kind} --help"));
        assert_eq!(help.status.code(), Some(0), "{kind}");
        assert!(text(&help.stdout).contains(&format!("g2g {kind}")), "{kind}");
    }
}

/// Finds the matches on one of [`ENUMS`] that have an arm for whatever they do not name.
#[derive(Default)]
struct Matches {
    /// What `Self` is.
    own: Option<String>,
    is_on_an_enum: bool,
    found: usize,
}

impl Visit<'_> for Matches {
    fn visit_item(&mut self, item: &Item) {
        let is_test = |attribute: &syn::Attribute| attribute.path().is_ident("cfg");
        if !matches!(item, Item::Mod(module) if module.attrs.iter().any(is_test)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, block: &ItemImpl) {
        if let syn::Type::Path(path) = &*block.self_ty {
            self.own = path.path.segments.last().map(|last| last.ident.to_string());
        }
        visit::visit_item_impl(self, block);
        self.own = None;
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if let Some(name) = path.segments.iter().rev().nth(1) {
            let name = name.ident.to_string();
            let name = if name == "Self" { self.own.clone().unwrap_or_default() } else { name };
            self.is_on_an_enum |= ENUMS.contains(&name.as_str());
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_match(&mut self, expression: &ExprMatch) {
        self.is_on_an_enum = false;
        expression.arms.iter().for_each(|arm| self.visit_pat(&arm.pat));
        let takes_all = |arm: &Arm| match &arm.pat {
            Pat::Wild(_) => true,
            Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
            _ => false,
        };
        if self.is_on_an_enum && expression.arms.iter().any(takes_all) {
            self.found += 1;
        }
        visit::visit_expr_match(self, expression);
    }
}

fn catch_all_matches(text: &str) -> usize {
    let mut matches = Matches::default();
    matches.visit_file(&syn::parse_file(text).unwrap());
    matches.found
}

#[test]
fn the_compiler_names_what_a_new_variant_lacks() {
    for (file, text) in architecture::sources() {
        assert_eq!(catch_all_matches(&text), 0, "{} takes all other variants", file.display());
    }
}

#[test]
fn a_catch_all_arm_is_found_wherever_it_is() {
    let count = |code: &str| catch_all_matches(&format!("fn f() {{ {code} }}"));
    assert_eq!(count("match x { Engine::Ce => 1, _ => 2 }"), 1);
    assert_eq!(count("match x { plan::Engine::Ce => 1, other => 2 }"), 1);
    assert_eq!(count("match (x, y) { (Some(Engine::Ce), 1) => 1, _ if z => 2, (..) => 3 }"), 1);
    assert_eq!(count("match x { 1 => match e { Engine::Ce => 1, _ => 2 }, _ => 3 }"), 1);
    assert_eq!(count("match x { Engine::Ce => match n { 1 => 1, _ => 2 }, Engine::Sm => 3 }"), 0);
    assert_eq!(count("match x { Wait::Spin => 1, _ => Engine::Ce as u32 }"), 0);
    let own = "impl Operation { fn f(self) { match self { Self::Copy => 1, _ => 2 } } }";
    assert_eq!(catch_all_matches(own), 1);
}
