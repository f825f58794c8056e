//! The library: where it is found, its version, and its errors.

use std::{
    ffi::c_char,
    fmt, fs,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use libloading::os::unix as os;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    bindings::{self, ncclComm_t, ncclResult_t},
    calls::{Calls, required},
    names,
};
use crate::ffi::{
    CallError, Cause,
    library::{Absent, Missing, is_simulated, load_first, path_of},
    process::with_output_on_stderr,
    simulation, text_of,
};

/// The library's file, by the name that its makers gave it.
const FILE: &str = "libnccl.so.2";

/// Folders of CUDA's and NCCL's own installers, which the dynamic loader may not know.
const FOLDERS: [&str; 4] =
    ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/nccl/lib", "/opt/nccl/lib"];

/// Python environments of machine images.
const ENVIRONMENTS: [&str; 2] = ["/opt/pytorch", "/opt/conda"];

/// Where NVIDIA's wheel has the library, below a folder of packages.
const IN_PACKAGES: &str = "nvidia/nccl/lib/libnccl.so.2";

/// NCCL, loaded. It is never unloaded: its threads would be left without code.
#[derive(Debug)]
pub struct Library {
    pub(super) calls: Calls,
    version: u32,
    /// The file that was loaded.
    pub path: PathBuf,
}

/// An id that ranks of one communicator share: rank 0 makes it, the others get it from rank 0.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(super) bindings::ncclUniqueId);

impl Serialize for UniqueId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A `c_char` has a sign on some machines only.
        let bytes: Vec<u8> = self.0.internal.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for UniqueId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let length = bytes.len();
        let bytes: [u8; 128] =
            bytes.try_into().map_err(|_| D::Error::invalid_length(length, &"128 bytes"))?;
        Ok(Self(bindings::ncclUniqueId {
            internal: bytes.map(|byte| c_char::from_ne_bytes([byte])),
        }))
    }
}

/// The library of this process.
static LIBRARY: OnceLock<Result<Library, Absent>> = OnceLock::new();

impl Library {
    /// The library of this process: loaded by the first who asks, from `path`, or without one from
    /// the first place that has it. Later calls return the same library.
    ///
    /// NCCL reads its variables when it is first called and keeps them: they must be set by now.
    pub fn load(path: Option<&Path>) -> Result<&'static Self, Absent> {
        LIBRARY.get_or_init(|| Self::open(path)).as_ref().map_err(Clone::clone)
    }

    /// The library of this process, if it has been loaded.
    pub fn loaded() -> Option<&'static Self> {
        LIBRARY.get()?.as_ref().ok()
    }

    fn open(path: Option<&Path>) -> Result<Self, Absent> {
        let places = match (simulation::library(), path) {
            (Some(simulated), _) => vec![simulated.to_owned()],
            (None, Some(path)) => vec![path.to_owned()],
            (None, None) => places(|name| std::env::var(name).ok()),
        };
        let (place, loaded) = load_first(&places).map_err(|reason| {
            Absent::new(format!(
                "{reason}: this needs NCCL: install it (libnccl2 of NVIDIA's repository for Debian \
                 and Ubuntu, or nvidia-nccl-cu12 or -cu13 by pip) or give --nccl-lib"
            ))
        })?;
        Self::new(place, &loaded)
    }

    fn new(place: &Path, loaded: &os::Library) -> Result<Self, Absent> {
        let calls = Calls::load(loaded).map_err(|name| {
            Absent::new(match simulation::library() {
                Some(_) => format!("the simulated machine has no NCCL: {name} is missing"),
                None => format!(
                    "{} is no NCCL that can be used: it has no {name}; give another with \
                     --nccl-lib",
                    place.display()
                ),
            })
        })?;
        if is_simulated(loaded) && simulation::library().is_none() {
            let reason = "the NCCL that was found is the simulated one: --simulate asks for it";
            return Err(Absent::new(reason));
        }
        let path = path_of(calls.ncclGetVersion as *const ());
        let library = Self { calls, version: 0, path };
        let mut version = 0;
        // SAFETY: `version` is a live local that the call only writes.
        let code = unsafe { (library.calls.ncclGetVersion)(&raw mut version) };
        let asked = library.check("ncclGetVersion", code, None, String::new);
        asked.map_err(|err| Absent::new(format!("{}: {err}", place.display())))?;
        Ok(Self { version: version.unsigned_abs(), ..library })
    }

    /// Its version, such as `2.32.3`.
    pub fn version(&self) -> Version {
        Version::of_code(self.version)
    }

    /// What is missing for `feature`, if anything is.
    pub fn lacks(&self, feature: Feature) -> Option<Missing> {
        let name = feature.needs().iter().find(|name| self.calls.lacks(name))?;
        required::<()>(name, None).err()
    }

    /// The variables that it knows, by the names in its file; sorted, each once.
    pub fn variables(&self) -> Result<Vec<String>, CallError> {
        names::of_file(&self.path)
    }

    /// Makes an id for a new communicator. Opens a socket for the ranks that are to come.
    ///
    /// # Errors
    ///
    /// There is no network interface that it could use.
    pub fn unique_id(&self) -> Result<UniqueId, CallError> {
        let mut id = bindings::ncclUniqueId { internal: [0; 128] };
        // SAFETY: `id` is a live local that the call only writes.
        let code = unsafe { (self.calls.ncclGetUniqueId)(&raw mut id) };
        self.check("ncclGetUniqueId", code, None, String::new)?;
        Ok(UniqueId(id))
    }

    /// Why the library makes no communicator where there is no driver, in its own words; `None` if
    /// it makes one.
    pub fn refusal(&self) -> Option<CallError> {
        with_output_on_stderr(|| {
            // NCCL looks for a GPU before it looks at the id; an id of its own would come with a
            // thread, which may write to its log at any time.
            let nobodys = bindings::ncclUniqueId { internal: [0; 128] };
            let mut communicator = ptr::null_mut();
            // SAFETY: `communicator` is a live local that the call only writes; an id is plain
            // bytes.
            let code =
                unsafe { (self.calls.ncclCommInitRank)(&raw mut communicator, 1, nobodys, 0) };
            let refused = self.check("ncclCommInitRank", code, None, || "1 rank".to_owned()).err();
            if !communicator.is_null() {
                // SAFETY: the communicator was made above, is used by nobody, and destroyed only
                // here.
                unsafe { (self.calls.ncclCommDestroy)(communicator) };
            }
            refused
        })
    }

    /// Turns a return code into an error that names the call, the object, the code, its name and
    /// the library's sentences; of `communicator` where there is one.
    pub(super) fn check(
        &self,
        call: &'static str,
        code: ncclResult_t,
        communicator: Option<ncclComm_t>,
        object: impl FnOnce() -> String,
    ) -> Result<(), CallError> {
        if code == bindings::ncclSuccess {
            return Ok(());
        }
        Err(self.error(call, code, communicator, object()))
    }

    #[cold]
    fn error(
        &self,
        call: &'static str,
        code: ncclResult_t,
        communicator: Option<ncclComm_t>,
        object: String,
    ) -> CallError {
        // SAFETY: the call takes an integer, and answers every one.
        let text = unsafe { (self.calls.ncclGetErrorString)(code) };
        // SAFETY: the answer is a string of the library's own, which it keeps.
        let mut text = unsafe { text_of(text) }.unwrap_or_default();
        let last = self.last_error(communicator.unwrap_or(ptr::null_mut()));
        if !last.is_empty() {
            text = format!("{text}: {last}");
        }
        let name = name_of(code).to_owned();
        CallError::new(call, object, Cause::Library { code, name, text })
    }

    /// What the library says went wrong last; empty if it has said nothing.
    fn last_error(&self, communicator: ncclComm_t) -> String {
        let Some(ask) = self.calls.ncclGetLastError else { return String::new() };
        // SAFETY: the argument is null or a live communicator's; the call does not look into it
        // beyond that.
        let text = unsafe { ask(communicator) };
        // SAFETY: the answer is a string that this library keeps until its next error, which only
        // this thread's next call could bring; it is copied here.
        unsafe { text_of(text) }.unwrap_or_default().trim().to_owned()
    }
}

/// What some libraries cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Dividing a communicator.
    Split,
    /// Buffers that are registered with a communicator.
    Registration,
    /// Buffers in windows, which symmetric kernels use.
    Windows,
    /// Memory from NCCL's own allocator.
    Allocation,
    /// A sum whose parts are multiplied by a factor first.
    ScaledSum,
}

impl Feature {
    const fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Split => &["ncclCommSplit"],
            Self::Registration => &["ncclCommRegister", "ncclCommDeregister"],
            Self::Windows => &["ncclCommWindowRegister", "ncclCommWindowDeregister"],
            Self::Allocation => &["ncclMemAlloc", "ncclMemFree"],
            Self::ScaledSum => &["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"],
        }
    }
}

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// The version that NCCL writes as `code`: with two digits for minor and patch since 2.9, with
    /// one for the minor before (`NCCL_VERSION` in its header).
    pub const fn of_code(code: u32) -> Self {
        let of_major = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / of_major, minor: code % of_major / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The file and the places where it may be, in their order: what the dynamic loader finds, the
/// Python environment in use, the usual folders, other Pythons.
fn places(variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable);
    let in_use = environments.flat_map(|folder| in_environment(Path::new(&folder)));
    let usual = FOLDERS.iter().map(|folder| Path::new(folder).join(FILE));
    let path = variable("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|folder| folder.join("python3").is_file());
    let python = python.as_deref().and_then(Path::parent).map(in_environment);
    let users = variable("HOME").map(|home| in_environment(&Path::new(&home).join(".local")));
    let images = ENVIRONMENTS.iter().flat_map(|folder| in_environment(Path::new(folder)));
    let found = in_use
        .chain(usual)
        .chain(python.into_iter().flatten())
        .chain(users.into_iter().flatten())
        .chain(images)
        .filter(|path| path.is_file());
    std::iter::once(PathBuf::from(FILE)).chain(found).collect()
}

/// Where the library would be below a prefix of Python: each of its versions has a folder.
fn in_environment(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let mut pythons: Vec<PathBuf> = fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort_unstable();
    let packages = |python: &PathBuf| {
        ["site-packages", "dist-packages"].map(|folder| python.join(folder).join(IN_PACKAGES))
    };
    pythons.iter().rev().flat_map(packages).collect()
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The library's name for `code`.
        fn name_of(code: ncclResult_t) -> &'static str {
            match code {
                $(bindings::$name => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

names! {
    ncclSuccess ncclUnhandledCudaError ncclSystemError ncclInternalError ncclInvalidArgument
    ncclInvalidUsage ncclRemoteError ncclInProgress ncclTimeout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_a_version_are_read() {
        assert_eq!(Version::of_code(23203).to_string(), "2.32.3");
        assert_eq!(Version::of_code(22105).to_string(), "2.21.5");
        assert_eq!(Version::of_code(2804).to_string(), "2.8.4");
        assert!(Version::of_code(21805) < Version::of_code(23004));
    }

    #[test]
    fn the_environment_in_use_comes_before_others_and_after_the_loaders_own() {
        let root = tempfile::tempdir().unwrap();
        let file = |prefix: &str| {
            root.path().join(prefix).join("lib/python3.11/site-packages").join(IN_PACKAGES)
        };
        for prefix in ["venv", "prefix", "home/.local"] {
            fs::create_dir_all(file(prefix).parent().unwrap()).unwrap();
            fs::write(file(prefix), "").unwrap();
        }
        let bin = root.path().join("prefix/bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python3"), "").unwrap();
        let found = places(|name| match name {
            "VIRTUAL_ENV" => Some(root.path().join("venv").display().to_string()),
            "PATH" => Some(format!("/nowhere:{}", bin.display())),
            "HOME" => Some(root.path().join("home").display().to_string()),
            _ => None,
        });
        let ours: Vec<_> = found.iter().filter(|path| path.starts_with(root.path())).collect();
        assert_eq!(found[0], Path::new("libnccl.so.2"));
        assert_eq!(ours, [&file("venv"), &file("prefix"), &file("home/.local")]);
    }

    #[test]
    fn an_unknown_code_has_a_name_too() {
        assert_eq!(name_of(7), "ncclInProgress");
        assert_eq!(name_of(99), "unknown");
    }
}
