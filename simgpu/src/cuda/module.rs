//! Modules and their kernels.

use std::ffi::{CStr, c_char, c_void};

use super::{
    Code, In, Out, driver,
    local::{Function, Module},
    queue::synchronize_all,
    rest::First,
};
use crate::{
    kernels::{self, BadModule},
    state::World,
};

driver! {
    fn cuModuleLoadData(module: Out<u64>, image: In<c_char>) |world| {
        load(world, &module, &image)
    }

    fn cuModuleLoadDataEx(
        module: Out<u64>,
        image: In<c_char>,
        _count: u32,
        _options: In<u32>,
        _values: In<*mut c_void>,
    ) |world| {
        load(world, &module, &image)
    }

    fn cuModuleUnload(module: u64) |world| {
        let mut local = world.local();
        local.current(world)?;
        local.modules.remove(module).ok_or(Code::INVALID_HANDLE)?;
        local.functions.take(|function| function.module == module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) |world| {
        let mut local = world.local();
        local.current(world)?;
        let found = local.modules.get(module).ok_or(Code::INVALID_HANDLE)?;
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of this function it is a C string.
        let name = unsafe { CStr::from_ptr(name.pointer()) };
        let is = |kernel: &&&kernels::Kernel| kernel.name.as_bytes() == name.to_bytes();
        let kernel = *found.kernels.iter().find(is).ok_or(Code::NOT_FOUND)?;
        let gpu = found.gpu;
        function.set(local.functions.add(Function { module, gpu, kernel }))
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) |world| {
        let local = world.local();
        local.initialised()?;
        // CU_MODULE_EAGER_LOADING or CU_MODULE_LAZY_LOADING
        mode.set(if local.is_eager { 1 } else { 2 })
    }

    fn cuFuncLoad(function: u64) |world| {
        let mut local = world.local();
        let gpu = local.functions.get(function).ok_or(Code::INVALID_HANDLE)?.gpu;
        if !local.is_eager && local.context(gpu).used.insert(First::Function(function)) {
            drop(local);
            synchronize_all(world, Some(gpu));
        }
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: u64) |world| {
        let local = world.local();
        let function = local.functions.get(function).ok_or(Code::INVALID_HANDLE)?;
        let (major, minor) = world.machine.gpus[function.gpu as usize].compute_capability;
        value.set(match attribute {
            // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
            0 => 1024,
            // Shared, constant and local memory, cache mode, dynamic shared memory, carve-out.
            1 | 2 | 3 | 7 | 8 => 0,
            // Registers of a thread.
            4 => 32,
            // The version of the PTX, and of what it was compiled for.
            5 => 70,
            6 => (major * 10 + minor) as i32,
            9 => -1,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuFuncSetAttribute(function: u64, _attribute: i32, _value: i32) |world| {
        let local = world.local();
        local.functions.get(function).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
}

fn load(world: &World, module: &Out<u64>, image: &In<c_char>) -> Result<(), Code> {
    let mut local = world.local();
    let gpu = local.current(world)?;
    if image.is_null() || module.pointer().is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract of these functions an image has at least a header of four bytes;
    // anything else is a C string, which has one byte and then its end.
    let text = unsafe { CStr::from_ptr(image.pointer()) };
    // The beginnings of an ELF file (a cubin) and of a fat binary.
    let binary = [&b"\x7fELF"[..], b"\x50\xED\x55\xBA"];
    if binary.iter().any(|magic| text.to_bytes().starts_with(magic)) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let text = text.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    let kernels = kernels::module(text).map_err(|bad| match bad {
        BadModule::NotPtx => Code::INVALID_PTX,
        BadModule::Unknown => Code::NOT_SUPPORTED,
    })?;
    module.set(local.modules.add(Module { gpu, kernels }))
}
