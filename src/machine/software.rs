//! The libraries that GPU communication needs beside the driver: where they are installed, their
//! versions, and whether the dynamic loader finds them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

use super::system::System;

/// The dynamic loader's default folders (`ld.so(8)`) on the distributions that EC2 has images of.
const USUAL: [&str; 6] = [
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/lib64",
    "/lib",
];

/// The folders of the installers of EFA, CUDA and NCCL, which the loader only searches if it is
/// configured to.
const OWN: [&str; 8] = [
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/cuda/lib64",
];

/// The file in which EFA's installer lists what it has installed.
const PACKAGES: &str = "/opt/amazon/efa_installed_packages";

/// The libraries that are installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Software {
    /// The version of EFA's installer.
    pub efa_installer: Option<String>,
    /// The version of Fabric Manager, which has to be the driver's.
    pub fabric_manager: Option<String>,
    /// NCCL, each file once; the first one is used.
    pub nccl: Vec<Installed>,
    /// libfabric.
    pub libfabric: Vec<Installed>,
    /// NCCL's plugins for EFA (`libnccl-net*.so` of aws-ofi-nccl).
    pub nccl_plugins: Vec<Installed>,
    /// CUDA's runtime by the name that libfabric asks for, which has no version.
    pub cuda_runtime: Vec<Installed>,
    /// The providers that the loaded libfabric offers, each with its fabrics; `None`: it is not
    /// loaded.
    pub providers: Option<BTreeMap<String, BTreeSet<String>>>,
    /// Whether the loader's configuration could be read.
    pub knows_loader: bool,
}

/// A library's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Where it is found.
    pub path: String,
    /// Its version.
    pub version: Option<String>,
    /// Whether the dynamic loader finds it by its name.
    pub is_on_path: bool,
}

impl Installed {
    /// The first two numbers of its version.
    pub fn numbers(&self) -> Option<(u32, u32)> {
        let mut numbers = self.version.as_deref()?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl Software {
    /// Finds the libraries of `system`. `library_path` is `LD_LIBRARY_PATH`. On a real machine NCCL
    /// and libfabric are loaded, which shows the ones that the loader chooses.
    pub fn read(system: &System, library_path: Option<&str>) -> Self {
        let loader = Loader::of(system, library_path);
        let packages = system.text(PACKAGES).unwrap_or_default();
        let mut software = Self {
            efa_installer: first(&INSTALLER, &packages),
            fabric_manager: fabric_manager(system),
            nccl: loader.find(system, |name| name == "libnccl.so.2"),
            libfabric: loader.find(system, |name| name == "libfabric.so.1"),
            cuda_runtime: loader.find(system, |name| name == "libcudart.so"),
            nccl_plugins: loader
                .find(system, |name| name.starts_with("libnccl-net") && name.ends_with(".so")),
            providers: None,
            knows_loader: loader.is_known,
        };
        // Other networks have plugins of the same name.
        software.nccl_plugins.retain(|plugin| {
            let bytes = || system.bytes(&plugin.path).unwrap_or_default();
            ["ofi-nccl", "net-ofi"].iter().any(|name| plugin.path.contains(name))
                || OFI_PLUGIN.is_match(&bytes())
        });
        // libfabric's file names have the version of the interface, and the plugin's have none.
        for (libraries, expression) in
            [(&mut software.libfabric, &LIBFABRIC), (&mut software.nccl_plugins, &PLUGIN)]
        {
            for library in libraries {
                let is_amazons = library.path.starts_with("/opt/amazon/");
                library.version = first(expression, &packages).filter(|_| is_amazons);
            }
        }
        if system.is_real() {
            software.load();
        }
        if system.is_real() || super::simulated_host().is_some() {
            software.providers = providers();
        }
        software
    }

    /// Adds the libraries that the loader finds.
    fn load(&mut self) {
        super::nccl(None);
        for library in super::libraries() {
            let kind = match library.name.as_str() {
                "NCCL" => &mut self.nccl,
                "libfabric" => &mut self.libfabric,
                _ => continue,
            };
            let file = |path: &str| std::fs::canonicalize(path).ok();
            kind.retain(|known| file(&known.path) != file(&library.path));
            let version = Some(library.version);
            let loaded = Installed { path: library.path, version, is_on_path: true };
            kind.insert(0, loaded);
        }
    }
}

/// The version of Fabric Manager by Debian's list of packages; elsewhere by its own log, where it
/// has refused the driver.
fn fabric_manager(system: &System) -> Option<String> {
    let packages = system.text("/var/lib/dpkg/status").unwrap_or_default();
    let is_it = |package: &&str| {
        package.starts_with("Package: nvidia-fabricmanager")
            && package.contains("\nStatus: install ok installed\n")
    };
    let package = packages.split("\n\n").map(str::trim_start).find(is_it);
    let log = || system.text("/var/log/fabricmanager.log").ok();
    match package {
        Some(package) => first(&PACKAGE_VERSION, package),
        None => first(&FABRIC_MANAGER_REFUSAL, &log()?),
    }
}

/// What libfabric offers here, if it is here.
fn providers() -> Option<BTreeMap<String, BTreeSet<String>>> {
    super::fabric().ok()?;
    let mut providers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for nic in super::offered_nics(None) {
        providers.entry(nic.provider).or_default().insert(nic.name.fabric);
    }
    Some(providers)
}

static INSTALLER: LazyLock<Regex> =
    LazyLock::new(|| expression(r"EFA installer version: *(\d+(?:\.\d+)+)"));

/// The package's name on Debian (`libfabric1-aws_1.22.0amzn1.0_amd64`) and on Red Hat
/// (`libfabric-aws-1.22.0amzn1.0-1.amzn2.x86_64`).
static LIBFABRIC: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?:^|\s)libfabric[a-z0-9-]*[-_](\d+(?:\.\d+)+)"));

static PLUGIN: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?:^|\s)(?:libnccl-ofi|aws-ofi-nccl)[a-z-]*[-_](\d+(?:\.\d+)+)"));

static PACKAGE_VERSION: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?m)^Version: (?:\d+:)?(\d+(?:\.\d+)+)"));

/// `fabric manager NVIDIA GPU driver interface version 530.30.02 don't match with driver version
/// 530.41.03` (NVIDIA/gpu-operator, issue 544).
static FABRIC_MANAGER_REFUSAL: LazyLock<Regex> =
    LazyLock::new(|| expression(r"driver interface version (\d+(?:\.\d+)+) do"));

/// The plugin's name of itself in NCCL's log.
static OFI_PLUGIN: LazyLock<regex::bytes::Regex> =
    LazyLock::new(|| regex::bytes::Regex::new("aws-ofi-nccl").expect("a test uses it"));

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("a test uses every expression")
}

/// The first group of an expression.
fn first(expression: &Regex, text: &str) -> Option<String> {
    Some(expression.captures(text)?.get(1)?.as_str().to_owned())
}

/// Where the dynamic loader looks.
struct Loader {
    folders: Vec<PathBuf>,
    /// Whether its configuration could be read.
    is_known: bool,
}

impl Loader {
    fn of(system: &System, library_path: Option<&str>) -> Self {
        const CONFIGURATIONS: &str = "/etc/ld.so.conf.d";
        let named = library_path.unwrap_or_default().split(':').filter(|part| !part.is_empty());
        let mut folders: Vec<PathBuf> = named.map(PathBuf::from).collect();
        let names = system.names(CONFIGURATIONS).unwrap_or_default();
        let files = names.iter().map(|name| Path::new(CONFIGURATIONS).join(name));
        let mut is_known = false;
        for file in files.chain([PathBuf::from("/etc/ld.so.conf")]) {
            let Ok(text) = system.text(file) else { continue };
            is_known = true;
            let named = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
            folders.extend(named.map(PathBuf::from));
        }
        folders.extend(USUAL.map(PathBuf::from));
        Self { folders, is_known }
    }

    /// The files whose names are wanted, each once: in the loader's folders, then in those of
    /// installers.
    fn find(&self, system: &System, is_wanted: impl Fn(&str) -> bool) -> Vec<Installed> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let on_path = self.folders.iter().map(|folder| (folder.as_path(), true));
        for (folder, is_on_path) in on_path.chain(OWN.map(|folder| (Path::new(folder), false))) {
            let names = system.names(folder).unwrap_or_default();
            for name in names.into_iter().filter(|name| is_wanted(name)) {
                let path = folder.join(name);
                let Ok(file) = system.resolve(&path) else { continue };
                let version = version_in(&file);
                if seen.insert(file) {
                    let path = path.display().to_string();
                    found.push(Installed { path, version, is_on_path });
                }
            }
        }
        found
    }
}

/// The numbers behind `.so.` in a file's name, if there are several.
fn version_in(file: &Path) -> Option<String> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.contains('.').then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> System {
        let packages = "# EFA installer version: 1.34.0\n# Debug packages installed: no\n\
                        libfabric-aws-dev_1.22.0amzn1.0_amd64 libfabric1-aws_1.22.0amzn1.0_amd64 \
                        libnccl-ofi_1.11.0_amd64\n";
        let files = serde_json::json!({
            "/opt/amazon/efa_installed_packages": { "text": packages },
            "/opt/amazon/efa/lib/libfabric.so.1": { "link": "libfabric.so.1.26.0" },
            "/opt/amazon/efa/lib/libfabric.so.1.26.0": { "text": "" },
            "/opt/amazon/ofi-nccl/lib/libnccl-net.so": { "text": "" },
            "/usr/lib/x86_64-linux-gnu/libnccl.so.2": { "link": "libnccl.so.2.30.7" },
            "/usr/lib/x86_64-linux-gnu/libnccl.so.2.30.7": { "text": "" },
            "/lib": { "link": "usr/lib" },
            "/etc/ld.so.conf.d/efa.conf": { "text": "/opt/amazon/efa/lib\n" },
        });
        System::described(&files.to_string()).unwrap()
    }

    #[test]
    fn libraries_are_found_once_with_their_versions_and_whether_the_loader_finds_them() {
        let software = Software::read(&system(), None);
        let library = |path: &str, version: &str, is_on_path| {
            let (path, version) = (path.to_owned(), Some(version.to_owned()));
            vec![Installed { path, version, is_on_path }]
        };
        assert_eq!(software.efa_installer.as_deref(), Some("1.34.0"));
        assert_eq!(
            software.nccl,
            library("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "2.30.7", true)
        );
        assert_eq!(
            software.libfabric,
            library("/opt/amazon/efa/lib/libfabric.so.1", "1.22.0", true)
        );
        let plugin = "/opt/amazon/ofi-nccl/lib/libnccl-net.so";
        assert_eq!(software.nccl_plugins, library(plugin, "1.11.0", false));
        assert!(software.knows_loader);
        let told = Software::read(&system(), Some("/usr/local/lib:/opt/amazon/ofi-nccl/lib"));
        assert!(told.nccl_plugins[0].is_on_path);
    }

    #[test]
    fn a_plugin_for_another_network_is_none_for_efa() {
        let plugin = |text: &str| {
            let files = serde_json::json!({ "/usr/lib/libnccl-net.so": { "text": text } });
            let system = System::described(&files.to_string()).unwrap();
            Software::read(&system, None).nccl_plugins.len()
        };
        assert_eq!(plugin("NET/OFI Initializing aws-ofi-nccl %s"), 1);
        assert_eq!(plugin("NET/IB : Plugin Path"), 0);
    }

    #[test]
    fn both_package_managers_names_are_read() {
        let red_hat = "libfabric-aws-1.18.1amzn5.0-1.amzn2.x86_64 aws-ofi-nccl-1.7.4-1.x86_64";
        assert_eq!(first(&LIBFABRIC, red_hat).as_deref(), Some("1.18.1"));
        assert_eq!(first(&PLUGIN, red_hat).as_deref(), Some("1.7.4"));
        assert_eq!(first(&INSTALLER, red_hat), None);
    }
}
