//! Records the git revision, so that a result can be traced to the code that measured it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // HEAD names the branch; the log of HEAD changes with every commit, checkout and reset.
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/logs/HEAD");
    // What makes a build dirty.
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let revision = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
    println!("cargo::rustc-env=G2G_GIT_REVISION={revision}");
}
