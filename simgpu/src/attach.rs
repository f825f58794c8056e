//! Attaching a process to a machine: the functions that only the simulated driver has.

use std::{
    ffi::{CStr, c_char, c_int},
    os::fd::AsRawFd,
};

use crate::{fabric, machine, memory::Kind, state, system};

/// Attaches this process to a machine: to a new one, by its name or file (`machine`), or to that of
/// another process, by what [`simgpu_state`] gave there (`state`); the other pointer is null. What
/// happens by chance on a new machine follows from `seed`. Of a machine of several hosts this process
/// is on the one that its `rank` falls to, if ranks are dealt to the hosts in turn.
/// Answers 0, or 1 with a sentence in `error`.
///
/// # Safety
///
/// `machine` and `state` are null or C strings; `error` is null or has `error_length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_attach(
    machine: *const c_char,
    state: *const c_char,
    seed: u64,
    rank: u32,
    error: *mut c_char,
    error_length: usize,
) -> c_int {
    // SAFETY: the caller promises a C string or null.
    let machine = unsafe { text(machine) };
    // SAFETY: the caller promises a C string or null.
    let state = unsafe { text(state) };
    let attached = std::panic::catch_unwind(|| match (machine.as_deref(), state.as_deref()) {
        (Some(machine), None) => begin(machine, seed, rank),
        (None, Some(state)) => state::join(state, rank).map(drop),
        _ => Err("either a machine or a state must be given".to_owned()),
    });
    let sentence = match attached {
        Ok(Ok(())) => return 0,
        Ok(Err(sentence)) => sentence,
        Err(_) => "the simulation failed".to_owned(),
    };
    // SAFETY: the caller promises that much room, or null.
    unsafe { put_text(&sentence, error, error_length) };
    1
}

/// Writes the path under which other processes attach to this one's machine. Answers 0, or 1 if
/// there is no machine or not `length` bytes are enough.
///
/// # Safety
///
/// `path` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_state(path: *mut c_char, length: usize) -> c_int {
    let Some(world) = state::world() else { return 1 };
    let own = format!("/proc/{}/fd/{}", std::process::id(), world.state.file.as_raw_fd());
    // SAFETY: the caller promises that much room, or null.
    let whole = unsafe { put_text(&own, path, length) };
    c_int::from(!whole)
}

/// Writes the name of the host that this process is on, and answers of how many hosts its machine
/// consists; 0, if there is no machine.
///
/// # Safety
///
/// `name` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_host(name: *mut c_char, length: usize) -> u32 {
    let Some(world) = state::world() else { return 0 };
    // SAFETY: the caller promises that much room, or null.
    unsafe { put_text(&world.own.host.hostname, name, length) };
    world.machine.hosts
}

/// Writes the kernel's files on this process's host as JSON, and answers how long that is
/// without its NUL; nothing, if there is no machine. What does not fit into `length` bytes is left
/// out.
///
/// # Safety
///
/// `text` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_system(text: *mut c_char, length: usize) -> usize {
    let Some(world) = state::world() else { return 0 };
    let (own, place) = (&world.own, world.place);
    let described = std::panic::catch_unwind(|| system::files(own, place));
    let described = described.unwrap_or_default();
    // SAFETY: the caller promises that much room, or null.
    unsafe { put_text(&described, text, length) };
    described.len()
}

/// Writes what a file of the machine that is told as live shows now into the room for a text: `path`
/// has no links. The result is how long the text is, without its end; 0: there is no such file.
///
/// # Safety
///
/// `path` ends in NUL; `text` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_file(
    path: *const c_char,
    text: *mut c_char,
    length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let shown = path.to_str().ok().zip(state::world());
    let shown = shown.and_then(|(path, world)| system::live(world, path)).unwrap_or_default();
    // SAFETY: the caller promises that much room, or null.
    unsafe { put_text(&shown, text, length) };
    shown.len()
}

/// The host's time on the machine, in nanoseconds; 0, if there is no machine.
#[unsafe(no_mangle)]
pub extern "C" fn simgpu_time_ns() -> u64 {
    state::world().map_or(0, |world| world.host_ps() / 1000)
}

/// Another process had this time on the machine when it sent what has arrived here: the host's time
/// goes there, in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn simgpu_reach_ns(time_ns: u64) {
    if let Some(world) = state::world() {
        world.reach(time_ns.saturating_mul(1000));
    }
}

/// Whether this thread waits from now on for something that no endpoint of the network brings: time
/// goes on meanwhile. 0 or 1.
#[unsafe(no_mangle)]
pub extern "C" fn simgpu_wait(waits: c_int) {
    if let Some(world) = state::world() {
        fabric::wait(world, waits != 0);
    }
}

/// Whether the page at `address` is one of which the kernel does not say where it lies: of memory
/// that the driver has allocated, whose pages are not the process's own. 0 or 1.
#[unsafe(no_mangle)]
pub extern "C" fn simgpu_hides(address: u64) -> c_int {
    let Some(world) = state::world() else { return 0 };
    let local = world.local();
    let region = local.memory.find(address, 1);
    c_int::from(region.is_some_and(|region| matches!(region.kind, Kind::Pinned { .. })))
}

fn begin(machine: &str, seed: u64, rank: u32) -> Result<(), String> {
    let mut machine = machine::load(machine).map_err(|err| err.to_string())?;
    for jitter in &mut machine.faults.jitter {
        jitter.seed = seed;
    }
    machine.efa.seed = seed;
    // As the provider reads it (fi_efa.7): its messages then do what the device could.
    if std::env::var("FI_EFA_USE_DEVICE_RDMA").is_ok_and(|value| value == "0") {
        (machine.efa.reads, machine.efa.writes) = (false, false);
    }
    state::begin(machine, rank).map(drop)
}

/// The text of a C string.
///
/// # Safety
///
/// It is null or a C string.
unsafe fn text(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller promises a C string.
    Some(unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
}

/// Writes as much of `text` as fits, with a NUL; whether it is all.
///
/// # Safety
///
/// `target` is null or has `length` bytes.
pub(crate) unsafe fn put_text(text: &str, target: *mut c_char, length: usize) -> bool {
    if target.is_null() || length == 0 {
        return false;
    }
    let fits = text.len().min(length - 1);
    // SAFETY: `fits` is less than `length`, and a text that is made here is no part of the target.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, fits) };
    // SAFETY: as above.
    let end = unsafe { target.add(fits) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    fits == text.len()
}
