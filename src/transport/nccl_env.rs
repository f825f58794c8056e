//! Sets NCCL's environment variables for it, and checks them against the library.

use std::{env, fs, path::PathBuf};

use super::nccl::log;
pub use super::nccl::log::{MARK as LOG_MARK, sets as is_own, take as take_log};
use crate::{
    ffi::{nccl, process},
    plan::{
        NcclRequest, Rank,
        nccl_env::{Known, Origin, Setting, Version, findings, settings},
    },
};

/// The file that NCCL reads after the user's own.
const FILE_OF_ALL: &str = "/etc/nccl.conf";

/// Sets the user's variables of rank `rank` for this process and those that it starts, and, with
/// `keeps_log`, those that keep NCCL's log; with `diagnoses` too, NCCL looks for faults. It must run
/// before anything else, because NCCL reads some variables only at its first call.
pub fn set(
    request: &NcclRequest,
    rank: Rank,
    keeps_log: bool,
    diagnoses: bool,
) -> Result<(), String> {
    let failed = |err| format!("cannot set --nccl-env: {err}");
    let mut variables = request.of_rank(rank).variables;
    if keeps_log {
        let of_log = log::variables(&variables, diagnoses).map_err(failed)?;
        variables.retain(|(name, _)| of_log.iter().all(|(own, _)| own != name));
        variables.extend(of_log);
    }
    process::set_variables(&variables).map_err(failed)
}

/// Keeps NCCL's log on a rank that rank 0 has started, if rank 0 keeps its own.
pub fn set_of_rank() -> Result<(), String> {
    let failed = |err| format!("cannot keep NCCL's log: {err}");
    process::set_variables(&log::variables_of_rank().map_err(failed)?).map_err(failed)
}

/// Checks the variables that NCCL will see against the loaded library, or against the catalogue
/// alone if there is none. Returns warnings; the error says why a variable that the user gives has
/// no effect, and what to write.
pub fn check(request: &NcclRequest) -> Result<Vec<String>, String> {
    // What holds for one rank holds for all.
    let given = &request.of_rank(Rank(0)).variables;
    let name_of = |(name, _): &(String, String)| name.clone();
    for (place, name) in given.iter().map(name_of).enumerate() {
        if given[..place].iter().map(name_of).any(|earlier| earlier == name) {
            return Err(format!("--nccl-env {name} is given twice: give it once"));
        }
    }
    let settings = seen(given);
    let mut warnings = Vec::new();
    for (setting, finding) in findings(&settings, known().as_ref()) {
        if setting.origin == Origin::Given && finding.is_refused(request) {
            return Err(finding.sentence);
        }
        warnings.push(finding.sentence);
    }
    Ok(warnings)
}

/// The variables that NCCL sees if these are `given`.
pub fn seen(given: &[(String, String)]) -> Vec<Setting> {
    let inherited = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !is_own(name));
    settings(given, inherited, &files())
}

/// What is known of the NCCL that is loaded.
pub fn known() -> Option<Known> {
    let library = nccl::Library::loaded()?;
    let nccl::Version { major, minor, patch } = library.version();
    // Without readable names, the library counts as absent.
    let version = Version([major, minor, patch]);
    Some(Known { version, names: library.variables().ok()? })
}

/// The files that NCCL reads, in its order, with their texts ("NVIDIA/nccl", `src/misc/param.cc`,
/// `initEnvFunc`).
fn files() -> Vec<(PathBuf, String)> {
    let named = env::var_os("NCCL_CONF_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = named.or_else(|| env::home_dir().map(|home| home.join(".nccl.conf")));
    let paths = own.into_iter().chain([PathBuf::from(FILE_OF_ALL)]);
    let read = |path: PathBuf| {
        let text = fs::read(&path).ok()?;
        Some((path, String::from_utf8_lossy(&text).into_owned()))
    };
    paths.filter_map(read).collect()
}
