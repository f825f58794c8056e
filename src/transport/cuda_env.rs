//! The variables that CUDA's driver reads at its start, as measuring needs them.
//!
//! Work is queued behind a kernel that waits for the CPU, so a launch must return before its kernel
//! has ended, and no stream may wait in the queue of another.

use std::env;

use crate::ffi::process;

/// Variables of tools that inject a library into programs.
const INJECTIONS: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

/// A variable, the value that measuring needs, and which others are replaced.
struct Needed {
    name: &'static str,
    value: &'static str,
    /// Whether the user's value is replaced, and the user is told so.
    is_replaced: fn(&str) -> bool,
    /// What the user's value would do.
    means: &'static str,
}

/// "CUDA C++ Programming Guide", CUDA Environment Variables.
const NEEDED: [Needed; 3] = [
    Needed {
        name: "CUDA_LAUNCH_BLOCKING",
        value: "0",
        is_replaced: |value| value != "0",
        means: "every launch would wait for its kernel",
    },
    Needed {
        name: "CUDA_DEVICE_MAX_CONNECTIONS",
        value: "32",
        is_replaced: |value| value != "32",
        means: "streams would wait for each other",
    },
    // The driver could else load a kernel while another one waits for the CPU.
    Needed { name: "CUDA_MODULE_LOADING", value: "EAGER", is_replaced: |_| false, means: "" },
];

/// Sets the variables for this process and those that it starts, while it has one thread. Returns
/// a note for each value of the user that is replaced; the error says which variable must go.
pub fn set() -> Result<Vec<String>, String> {
    let of_user = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
    if let Some((name, value)) = INJECTIONS.iter().find_map(|name| Some((name, of_user(name)?))) {
        return Err(format!(
            "{name}={value} injects a tool that makes every launch wait for its kernel, so that \
             nothing can be timed: run g2g without the tool, or unset {name}"
        ));
    }
    let (mut variables, mut notes) = (Vec::new(), Vec::new());
    for Needed { name, value, is_replaced, means } in NEEDED {
        match of_user(name) {
            Some(given) if is_replaced(given.trim()) => {
                notes.push(format!("{name}={given} is {value} for this run: {means}"))
            }
            Some(_) => continue,
            None => {}
        }
        variables.push((name.to_owned(), value.to_owned()));
    }
    process::set_variables(&variables).map_err(|err| format!("cannot set variables: {err}"))?;
    Ok(notes)
}
