//! What comes with the program: man pages, completions, packages.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use clap::CommandFactory;
use g2g::command::Cli;

use crate::{
    common::{program, text},
    scripts::finish,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What the shells in a folder complete of a line.
fn completed(folder: &Path, words: &[&str]) -> String {
    let last = words.len() - 1;
    let script = format!(
        "source {}/completions/g2g.bash; COMP_WORDS=({}); COMP_CWORD={last}; \
         _g2g g2g '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
        folder.display(),
        words.join(" "),
        words[last],
        words[last - 1]
    );
    let (result, said) = finish(Command::new("bash").args(["-c", &script]));
    assert_eq!(result.status.code(), Some(0), "{said}");
    text(&result.stdout).trim().to_owned()
}

/// Fails unless `folder` has man pages and completions of all commands.
fn assert_documented(folder: &Path) {
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let page = folder.join(format!("man/man1/g2g-{}.1", command.get_name()));
        let page = fs::read_to_string(&page).unwrap_or_else(|err| panic!("{page:?}: {err}"));
        let examples = page.split_once("\n.SH EXAMPLES\n").unwrap_or_else(|| panic!("{page}")).1;
        let example = format!("  g2g {}", command.get_name());
        assert!(examples.lines().any(|line| line.starts_with(&example)), "{page}");
    }
    assert!(folder.join("man/man1/g2g.1").is_file());
    assert!(!folder.join("man/man1/g2g-internal-rank.1").exists());
    assert_eq!(completed(folder, &["g2g", "rd"]), "rdma");
    // Each command has its own flags.
    assert_eq!(completed(folder, &["g2g", "rdma", "--provid"]), "--provider");
    assert_eq!(completed(folder, &["g2g", "p2p", "--provid"]), "");
    for name in ["_g2g", "g2g.fish"] {
        let text = fs::read_to_string(folder.join("completions").join(name)).unwrap();
        assert!(text.contains("provider") && !text.contains("internal-rank"), "{name}");
    }
}

#[test]
fn each_command_has_a_man_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let manual = Path::new(program()).with_file_name("examples").join("manual");
    let (result, said) = finish(Command::new(manual).arg(folder.path()));
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert_documented(folder.path());
}

/// What `scripts/test --long` runs.
mod long {
    use super::*;

    fn well(command: &mut Command) -> Output {
        let (result, said) = finish(command);
        assert_eq!(result.status.code(), Some(0), "{said}");
        result
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn packages_run_with_an_old_glibc_and_the_wheel_in_an_environment() {
        let made = well(Command::new(root().join("scripts/package")).current_dir(root()));
        let made = text(&made.stdout);
        let made: Vec<&Path> = made.lines().map(Path::new).collect();
        assert_eq!(made.len(), 4);
        let of = |architecture: &str, ending: &str| -> PathBuf {
            let is_it = |path: &&&Path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.contains(architecture) && name.ends_with(ending)
            };
            made.iter().find(is_it).unwrap().to_path_buf()
        };
        for (architecture, emulator) in [("x86_64", ""), ("aarch64", "qemu-aarch64")] {
            let folder = tempfile::tempdir().unwrap();
            let tar = of(architecture, ".tar.gz");
            let mut unpack = Command::new("tar");
            unpack.arg("xf").arg(tar).args(["--strip-components=1", "-C"]).arg(folder.path());
            well(&mut unpack);
            let file = |name: &str| folder.path().join(name);
            let mut check = Command::new(root().join("scripts/package"));
            check.args(["--check", "2.17"]).args([file("g2g"), file("libsimgpu.so")]);
            well(&mut check);
            assert_documented(folder.path());
            assert!(
                file("LICENSE-MIT").is_file() && file("licences").read_dir().unwrap().count() > 50
            );
            let is_other = std::env::consts::ARCH != architecture;
            let mut command = match (is_other, emulator) {
                (true, "") => continue,
                (true, emulator) => {
                    let mut command = Command::new(emulator);
                    command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(file("g2g"));
                    // g2g sets these while it has one thread, and qemu has one of its own.
                    command.env("CUDA_LAUNCH_BLOCKING", "0");
                    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
                    command.env("CUDA_MODULE_LOADING", "EAGER");
                    command
                }
                (false, _) => Command::new(file("g2g")),
            };
            command.args("local --simulate g5g.metal --effort quick --output".split(' '));
            let result = well(command.arg(file("run")));
            assert!(text(&result.stdout).contains("every byte verified"), "{architecture}");
            // The scripts find the program of their package.
            if !is_other {
                let mut build = Command::new(file("scripts/build"));
                let found = well(build.arg("--if-needed").env_remove("G2G"));
                assert_eq!(text(&found.stdout).trim(), file("g2g").to_str().unwrap());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let environment = folder.path().join("environment");
        well(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        let pip = environment.join("bin/pip");
        let files = || {
            let mut find = Command::new("find");
            find.arg(&environment).args(["-not", "-path", "*/__pycache__*"]);
            let found = text(&well(&mut find).stdout).to_owned();
            found.lines().map(str::to_owned).collect::<BTreeSet<String>>()
        };
        let before = files();
        let mut install = Command::new(&pip);
        well(install.args(["install", "--no-index"]).arg(of(std::env::consts::ARCH, ".whl")));
        let mut installed = Command::new(environment.join("bin/g2g"));
        let result = well(installed.args(["topo", "--simulate", "p5.48xlarge"]));
        assert!(text(&result.stdout).contains("NVIDIA H100"));
        well(Command::new(&pip).args(["uninstall", "--yes", "g2g"]));
        assert_eq!(files(), before);
    }
}
