//! The files that describe a machine, in `/sys`, `/proc` and elsewhere: those of this machine or of
//! the simulated one.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::OnceLock,
};

use serde::Deserialize;

use crate::ffi::simulation;

/// The most bytes that are read of a file; the files of the kernel are shorter.
const LENGTH_MAX: u64 = 16 << 20;

/// The most records that are read of the kernel's log, which usually holds fewer.
const RECORDS_MAX: usize = 1 << 17;

/// The most links that are followed in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The files of a machine.
#[derive(Clone, Debug)]
pub enum System {
    /// The files of the machine that this process runs on, even if it simulates another one.
    Kernel,
    /// Files that are described, with their contents.
    Described(Files),
}

/// What is at each path. As text, paths compare many times as fast as by their components.
type Files = BTreeMap<String, Entry>;

/// What is at a path. Folders follow from the paths of their contents.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// A file.
    Text(String),
    /// A symbolic link; a target that is not absolute starts at the link's folder.
    Link(PathBuf),
    /// A folder, which may be empty.
    Folder,
    /// A file that only root may read.
    Denied,
    /// A file of the simulated machine whose text is asked for each time.
    Live,
}

/// Why a file could not be read, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// It does not exist.
    #[error("{} is not there", .0.display())]
    Absent(PathBuf),
    /// This user may not read it.
    #[error("only root may read {}", .0.display())]
    Denied(PathBuf),
    /// It does not hold what it should.
    #[error("{} {what}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it: a clause about the file.
        what: String,
    },
}

impl Unread {
    /// A file that holds an unexpected `text`.
    pub(super) fn holding(path: impl AsRef<Path>, text: &str) -> Self {
        malformed(path.as_ref(), &format!("holds {:?}", shortened(text)))
    }
}

impl System {
    /// The machine that this process is on: the simulated one if there is one.
    ///
    /// # Panics
    ///
    /// The simulation's description cannot be parsed: it was not built together with this program.
    pub fn here() -> &'static Self {
        static HERE: OnceLock<System> = OnceLock::new();
        HERE.get_or_init(|| match simulation::system() {
            Some(described) => {
                Self::described(&described).expect("the simulated machine describes itself")
            }
            None => Self::Kernel,
        })
    }

    /// A machine by its files: JSON, an object from paths to what lies there, such as `{"/sys/a":
    /// {"text": "1\n"}, "/sys/b": {"link": "a"}, "/sys/c": "folder", "/sys/d": "denied"}`.
    pub fn described(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self::Described)
    }

    /// The bytes of a file. Each letter of a described text is one byte.
    pub fn bytes(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Unread> {
        let path = path.as_ref();
        match self {
            Self::Kernel => {
                let mut bytes = Vec::new();
                let file = fs::File::open(path).map_err(|err| refused(path, &err))?;
                let read = file.take(LENGTH_MAX).read_to_end(&mut bytes);
                read.map_err(|err| refused(path, &err)).map(|_| bytes)
            }
            Self::Described(files) => {
                let text = described(files, path, &self.resolve(path)?)?;
                let letters = text.chars();
                let bytes: Option<Vec<u8>> = letters.map(|letter| letter.try_into().ok()).collect();
                bytes.ok_or_else(|| malformed(path, "has letters that are no bytes"))
            }
        }
    }

    /// The text of a file, without trailing white space. Invalid UTF-8 is replaced.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        let path = path.as_ref();
        let text = match self {
            Self::Kernel => String::from_utf8_lossy(&self.bytes(path)?).into_owned(),
            Self::Described(files) => described(files, path, &self.resolve(path)?)?.into_owned(),
        };
        Ok(text.trim_end().to_owned())
    }

    /// The messages in the kernel's log, the oldest first (`Documentation/ABI/testing/dev-kmsg`).
    /// Often only root may read it. A described machine has a file of its records.
    pub fn kernel_log(&self) -> Result<Vec<String>, Unread> {
        const LOG: &str = "/dev/kmsg";
        /// The longest record (`CONSOLE_EXT_LOG_MAX` of the kernel).
        const RECORD_MAX: usize = 8192;
        let said = |record: &str| Some(record.split_once(';')?.1.trim_end().to_owned());
        if let Self::Described(_) = self {
            return Ok(self.text(LOG)?.lines().filter_map(said).collect());
        }
        let open = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(LOG);
        let mut file = open.map_err(|err| refused(Path::new(LOG), &err))?;
        let mut sentences = Vec::new();
        let mut record = [0; RECORD_MAX];
        for _ in 0..RECORDS_MAX {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => sentences.extend(said(&String::from_utf8_lossy(&record[..length]))),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                // The kernel has overwritten the next record: the read continues behind it.
                Err(err) if err.raw_os_error() == Some(libc::EPIPE) => {}
                Err(err) => return Err(refused(Path::new(LOG), &err)),
            }
        }
        Ok(sentences)
    }

    /// The value that a file consists of.
    pub fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Result<T, Unread> {
        let text = self.text(path.as_ref())?;
        let value = text.trim().parse();
        value.map_err(|_| Unread::holding(path, &text))
    }

    /// The sorted names in a folder.
    pub fn names(&self, path: impl AsRef<Path>) -> Result<Vec<String>, Unread> {
        let path = path.as_ref();
        let names: BTreeSet<String> = match self {
            Self::Kernel => {
                let entries = fs::read_dir(path).map_err(|err| refused(path, &err))?;
                let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
                entries.flatten().filter_map(name).collect()
            }
            Self::Described(files) => {
                let folder = self.resolve(path)?;
                if let Some(Entry::Text(_) | Entry::Denied | Entry::Live) = entry(files, &folder) {
                    return Err(malformed(path, "is no folder"));
                }
                let first = |below: &str| below.split('/').next().unwrap_or_default().to_owned();
                below(files, &folder).map(first).collect()
            }
        };
        Ok(names.into_iter().collect())
    }

    /// Whether something is at a path that this user may see.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path.as_ref()).is_ok()
    }

    /// The path with all links followed.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<PathBuf, Unread> {
        let path = path.as_ref();
        let Self::Described(files) = self else {
            return fs::canonicalize(path).map_err(|err| refused(path, &err));
        };
        let mut links = 0;
        let mut rest: Vec<PathBuf> = parts(path);
        let mut place = PathBuf::from("/");
        while let Some(part) = rest.pop() {
            if part == Path::new("..") {
                place.pop();
                continue;
            }
            let next = place.join(&part);
            match entry(files, &next) {
                Some(Entry::Link(target)) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(malformed(path, "is a circle of links"));
                    }
                    if target.is_absolute() {
                        place = PathBuf::from("/");
                    }
                    rest.extend(parts(target));
                }
                None if below(files, &next).next().is_none() => {
                    return Err(Unread::Absent(path.to_owned()));
                }
                _ => place = next,
            }
        }
        Ok(place)
    }

    /// The target of a symbolic link, whether or not it exists.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        let path = path.as_ref();
        let target = match self {
            Self::Kernel => fs::read_link(path).map_err(|err| refused(path, &err))?,
            Self::Described(files) => {
                let absent = || Unread::Absent(path.to_owned());
                let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(absent)?;
                match entry(files, &self.resolve(folder)?.join(name)) {
                    Some(Entry::Link(target)) => target.clone(),
                    Some(Entry::Denied) => return Err(Unread::Denied(path.to_owned())),
                    Some(_) => return Err(malformed(path, "is no link")),
                    None => return Err(absent()),
                }
            }
        };
        Ok(target.to_string_lossy().into_owned())
    }

    /// Whether the files are those of this machine's kernel.
    pub const fn is_real(&self) -> bool {
        matches!(self, Self::Kernel)
    }
}

/// The text of the file at `place`, to which `path` resolves.
fn described<'a>(files: &'a Files, path: &Path, place: &Path) -> Result<Cow<'a, str>, Unread> {
    match entry(files, place) {
        Some(Entry::Text(text)) => Ok(text.into()),
        Some(Entry::Live) => {
            let text = simulation::file(place).ok_or_else(|| Unread::Absent(path.to_owned()))?;
            Ok(text.into())
        }
        Some(Entry::Denied) => Err(Unread::Denied(path.to_owned())),
        Some(Entry::Link(_) | Entry::Folder) | None => Err(malformed(path, "is a folder")),
    }
}

/// The components of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let parts = path.components().filter(named);
    parts.map(|part| PathBuf::from(part.as_os_str())).rev().collect()
}

/// What is at a path without links, `.` and `..`.
fn entry<'a>(files: &'a Files, path: &Path) -> Option<&'a Entry> {
    files.get(path.to_str()?)
}

/// The paths of all that is below such a path, from there on.
fn below<'a>(files: &'a Files, path: &Path) -> impl Iterator<Item = &'a str> {
    let folder = path.join("").to_string_lossy().into_owned();
    let paths = files.range(folder.clone()..).map(|(path, _)| path.as_str());
    paths.map_while(move |path| path.strip_prefix(&folder))
}

fn refused(path: &Path, err: &io::Error) -> Unread {
    match err.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unread::Absent(path.to_owned()),
        io::ErrorKind::PermissionDenied => Unread::Denied(path.to_owned()),
        _ => malformed(path, &format!("cannot be read: {err}")),
    }
}

pub(super) fn malformed(path: impl AsRef<Path>, what: &str) -> Unread {
    Unread::Malformed { path: path.as_ref().to_owned(), what: what.to_owned() }
}

/// The beginning of a text, for a message.
fn shortened(text: &str) -> String {
    const LETTERS: usize = 40;
    text.chars().take(LETTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> System {
        let files = r#"{
            "/sys/devices/pci0/0:1.0/numa_node": {"text": "1\n"},
            "/sys/devices/pci0/0:1.0/config": "denied",
            "/sys/devices/pci0/0:1.0/driver": {"link": "../../../bus/pci/drivers/nvme"},
            "/sys/bus/pci/devices/0:1.0": {"link": "../../../devices/pci0/0:1.0"},
            "/sys/kernel/iommu_groups": "folder",
            "/proc/self/ns/net": {"link": "net:[4026531840]"},
            "/loop": {"link": "/loop"}
        }"#;
        System::described(files).unwrap()
    }

    #[test]
    fn files_are_found_through_links() {
        let system = described();
        assert_eq!(system.value("/sys/bus/pci/devices/0:1.0/numa_node"), Ok(1));
        let place = system.resolve("/sys/bus/pci/devices/0:1.0").unwrap();
        assert_eq!(place, Path::new("/sys/devices/pci0/0:1.0"));
        assert_eq!(system.names("/sys/bus/pci/devices").unwrap(), ["0:1.0"]);
        let files = system.names("/sys/bus/pci/devices/0:1.0").unwrap();
        assert_eq!(files, ["config", "driver", "numa_node"]);
        let driver = system.link("/sys/bus/pci/devices/0:1.0/driver").unwrap();
        assert_eq!(driver, "../../../bus/pci/drivers/nvme");
        assert_eq!(system.names("/sys/kernel/iommu_groups").unwrap(), [""; 0]);
        assert_eq!(system.link("/proc/self/ns/net").unwrap(), "net:[4026531840]");
        assert!(system.has("/sys/kernel/iommu_groups") && !system.has("/sys/kernel/iommu"));
    }

    #[test]
    fn what_tells_nothing_says_why() {
        let system = described();
        let said = |result: Result<String, Unread>| result.unwrap_err().to_string();
        assert_eq!(said(system.text("/sys/b")), "/sys/b is not there");
        let config = "/sys/devices/pci0/0:1.0/config";
        assert_eq!(said(system.text(config)), format!("only root may read {config}"));
        assert_eq!(said(system.text("/sys/kernel")), "/sys/kernel is a folder");
        assert_eq!(said(system.text("/loop")), "/loop is a circle of links");
        assert_eq!(
            said(system.link("/sys/kernel/iommu_groups")),
            "/sys/kernel/iommu_groups is no link"
        );
        let node = "/sys/bus/pci/devices/0:1.0/numa_node";
        let odd = System::described(&format!(r#"{{"{node}": {{"text": "x1"}}}}"#)).unwrap();
        assert_eq!(odd.value::<u32>(node).unwrap_err().to_string(), format!("{node} holds \"x1\""));
    }

    #[test]
    fn this_machines_files_are_read_too() {
        let system = System::Kernel;
        assert!(system.is_real() && system.text("/proc/self/limits").unwrap().contains("Max"));
        assert!(system.names("/proc/self").unwrap().contains(&"limits".to_owned()));
        assert!(system.link("/proc/self/ns/net").unwrap().starts_with("net:["));
        assert!(matches!(system.text("/proc/none"), Err(Unread::Absent(_))));
        assert!(matches!(system.text("/proc"), Err(Unread::Malformed { .. })));
    }
}
