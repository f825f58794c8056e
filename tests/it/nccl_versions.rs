//! NVIDIA's own NCCL, of several versions: each has the functions and the variables that g2g takes
//! it to have, and says why it does not work without a GPU.

use std::{
    fs,
    path::{Path, PathBuf},
};

use g2g::ffi::nccl::CALLS;

use crate::common::{exports, g2g, kernel_has_driver, run, text};

/// Variables of the catalogue that NVIDIA's builds of a version do not have: those that are for
/// NCCL's developers, and those that newer versions than the catalogue knows have dropped.
const NOT_BUILT: [&str; 3] =
    ["NCCL_MLOPART_RDMA_ENABLE", "NCCL_NET_GDR_MLOPART", "NCCL_PROXY_PROFILE"];

/// A version as numbers.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap()).collect()
}

/// The version that tests/python lists for an environment, and the library in it.
fn installed(environment: &str) -> (String, PathBuf) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = root.join(format!("tests/python/{environment}.txt"));
    let list = fs::read_to_string(list).unwrap();
    let version = list.trim().split("==").nth(1).unwrap().to_owned();
    let pythons = fs::read_dir(root.join("target").join(environment).join("lib"));
    let place = "site-packages/nvidia/nccl/lib/libnccl.so.2";
    let mut paths = pythons.into_iter().flatten().map(|python| python.unwrap().path().join(place));
    let found = paths.find(|path| path.is_file());
    (version, found.expect("run scripts/test: it makes the Python environment of this test"))
}

/// Every variable of NCCL in the catalogue, and whether a version reads it by its `since` and
/// `until`.
fn variables(version: &[u32]) -> Vec<(String, bool)> {
    let catalogue: toml::Table =
        toml::from_str(include_str!("../../src/plan/catalogue.toml")).unwrap();
    let tables = ["nccl_env", "nccl_env_other"].map(|table| catalogue[table].as_table().unwrap());
    let all = tables.into_iter().flatten().filter(|(name, _)| name.starts_with("NCCL_"));
    let bound = |entry: &toml::Value, key| Some(numbers(entry.get(key)?.as_str().unwrap()));
    all.map(|(name, entry)| {
        let has_begun = bound(entry, "since").is_none_or(|since| *since <= *version);
        let has_ended = bound(entry, "until").is_some_and(|until| *until < *version);
        (name.clone(), has_begun && !has_ended)
    })
    .collect()
}

fn is_as_g2g_takes_it_to_be(environment: &str) {
    let (version, library) = installed(environment);
    let own = numbers(&version);
    let exported = exports(&library);
    for (since, names) in CALLS {
        let missing: Vec<_> = names.iter().filter(|name| !exported.contains(**name)).collect();
        assert_eq!(missing.is_empty(), own >= numbers(since), "{version}, {since}: {missing:?}");
    }

    // What the doctor says of every variable at once.
    let variables = variables(&own);
    assert!(variables.len() > 200, "{}", variables.len());
    let mut command = g2g();
    command.env_clear().envs(variables.iter().map(|(name, _)| (name, "1")));
    command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    let result = run(command, "doctor --json");
    let json: serde_json::Value = serde_json::from_str(&text(&result.stdout)).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let seen = |check: &str| -> Vec<&str> {
        let of_check = findings.iter().filter(|finding| finding["check"] == check);
        of_check.map(|finding| finding["seen"].as_str().unwrap()).collect()
    };
    let expected = format!("NCCL {version} at {}", library.canonicalize().unwrap().display());
    assert_eq!(seen("nccl"), [expected]);
    let unread =
        seen("nccl-variables").into_iter().filter(|seen| seen.contains("does not read it"));
    let unread: Vec<&str> = unread.map(|seen| seen.split('=').next().unwrap()).collect();
    for (name, is_read) in &variables {
        let is_unread = unread.contains(&name.as_str());
        assert!(
            is_unread != *is_read || (*is_read && NOT_BUILT.contains(&name.as_str())),
            "{version}: {name} is read: {is_read} by the catalogue, {} by the library",
            !is_unread
        );
    }

    if kernel_has_driver() {
        return;
    }
    let mut command = g2g();
    command.env_clear();
    let result = run(command, &format!("nccl --nccl-lib {}", library.display()));
    let said = text(&result.stderr);
    assert_eq!((result.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    for part in [&*format!("NCCL {version} ("), "ncclCommInitRank(1 rank) failed", "libcuda.so.1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn the_newest_is_as_g2g_takes_it_to_be() {
    is_as_g2g_takes_it_to_be("nccl");
}

/// What `scripts/test --long` runs: it gets these libraries.
mod long {
    use super::is_as_g2g_takes_it_to_be;

    #[test]
    #[ignore = "needs a library of 200 MB"]
    fn version_2_18() {
        is_as_g2g_takes_it_to_be("nccl-2.18");
    }

    #[test]
    #[ignore = "needs a library of 200 MB"]
    fn version_2_21() {
        is_as_g2g_takes_it_to_be("nccl-2.21");
    }

    #[test]
    #[ignore = "needs a library of 200 MB"]
    fn version_2_23() {
        is_as_g2g_takes_it_to_be("nccl-2.23");
    }

    #[test]
    #[ignore = "needs a library of 300 MB"]
    fn version_2_27() {
        is_as_g2g_takes_it_to_be("nccl-2.27");
    }
}
