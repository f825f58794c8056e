//! The variables that a library knows: their names in its file.
//!
//! NCCL has no call that lists them. Their names are strings of their own among the file's
//! constants; the names of enumerations are not, nor what is said in messages.

use std::{fs::File, io, path::Path};

use object::{
    Endianness,
    elf::FileHeader64,
    read::{
        ReadCache, ReadRef,
        elf::{FileHeader, SectionHeader},
    },
};

use crate::ffi::CallError;

/// What the names begin with.
const BEGINNING: &[u8] = b"NCCL_";

/// What comes before a name in a sentence. `?` and `@` are none of it: floating-point numbers end
/// in them.
const IN_TEXT: &[u8] = b" \t\n\"'`(<[{=/\\,.:;-+*|&!%";

/// Where a file has its constants.
const SECTION: &[u8] = b".rodata";

/// The names of the variables that the library at `path` knows; sorted, each once. Only its
/// constants are read, which are some hundred kilobytes of some hundred megabytes.
pub(super) fn of_file(path: &Path) -> Result<Vec<String>, CallError> {
    let error = |source: io::Error| CallError::new("read", path.display().to_string(), source);
    let cache = ReadCache::new(File::open(path).map_err(error)?);
    let constants =
        constants(&cache).map_err(|err| error(io::Error::new(io::ErrorKind::InvalidData, err)))?;
    Ok(names(constants))
}

fn constants<'data>(file: impl ReadRef<'data>) -> object::Result<&'data [u8]> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    match sections.section_by_name(endian, SECTION) {
        Some((_, section)) => section.data(endian, file),
        None => Ok(&[]),
    }
}

/// The strings that can be names of variables: they end in a NUL, and begin behind one or behind
/// the constants of another kind that a compiler has put before them, but not within a text.
fn names(constants: &[u8]) -> Vec<String> {
    let mut names: Vec<String> =
        constants.split(|byte| *byte == 0).filter_map(name_at_the_end).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The name that a string is, or that stands right behind constants of another kind.
fn name_at_the_end(string: &[u8]) -> Option<String> {
    let of_name = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let start = string.iter().rposition(|byte| !of_name(byte)).map_or(0, |last| last + 1);
    let (before, last) = string.split_at(start);
    let place = last.windows(BEGINNING.len()).position(|window| window == BEGINNING)?;
    // A number may end in what looks like a letter or two.
    let (letters, name) = last.split_at(place);
    let is_in_word = letters.len() > 2 || letters.contains(&b'_');
    // Spaces alone are no sentence, but a constant of sixteen of them.
    let has_text = before.iter().any(|byte| *byte != b' ');
    let ends_in_text = before.last().is_some_and(|byte| IN_TEXT.contains(byte));
    let is_in_text = letters.is_empty() && has_text && ends_in_text;
    let is_name = !is_in_word && !is_in_text && name.len() > BEGINNING.len();
    is_name.then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings_of_their_own() {
        let constants = b"\0NCCL_DEBUG\0set NCCL_ALGO\0NCCL_\0NCCL_algo\0NCCL_BUFFSIZE\0\0\
            NCCL_DEBUG\0OFI_NCCL_RAILS\0\xd9?NCCL_PROTO\0linksNCCL_NET\0NCCL_TYPE is bad\0\
            0:00.0NCCL_SOCKET_MAGIC\0see (NCCL_CONFIG\0 by X_NCCL_X\0    NCCL_NTHREADS\0";
        let expected = [
            "NCCL_BUFFSIZE",
            "NCCL_DEBUG",
            "NCCL_NET",
            "NCCL_NTHREADS",
            "NCCL_PROTO",
            "NCCL_SOCKET_MAGIC",
        ];
        assert_eq!(names(constants), expected);
    }

    #[test]
    fn this_program_is_a_file_with_constants_and_a_text_is_none() {
        assert!(of_file(&std::env::current_exe().unwrap()).is_ok());
        let text = tempfile::NamedTempFile::new().unwrap();
        let err = of_file(text.path()).unwrap_err().to_string();
        assert!(err.starts_with("read("), "{err}");
        assert!(of_file(Path::new("/nowhere/libnccl.so.2")).is_err());
    }
}
