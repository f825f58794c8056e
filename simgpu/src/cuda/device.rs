//! The driver itself and its devices.

use std::ffi::{CStr, c_char};

use super::{
    Code, In, Out, driver, reach::has_access, virtual_memory::gives_fabric_handles,
    visible::visible,
};
use crate::{
    attach::put_text,
    machine::{Gpu, Link, Machine},
    state::World,
    timing::{CONNECTIONS, cost::pair},
};

driver! {
    fn cuInit(flags: u32) |world| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let visible = visible(variable.as_deref(), &world.own);
        if visible.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        let mut local = world.local();
        local.initialised = true;
        let is_set = |name: &str| {
            std::env::var(name).is_ok_and(|value| !value.is_empty() && value != "0")
        };
        local.is_eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        local.is_launch_blocking =
            ["CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"]
                .into_iter()
                .any(is_set);
        let connections = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
        let connections = connections.and_then(|count| count.parse().ok());
        local.connections = connections.unwrap_or(8).clamp(1, CONNECTIONS);
        local.visible = visible;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<i32>) |world| {
        version.set(world.machine.driver_version as i32)
    }

    fn cuDeviceGetCount(count: Out<i32>) |world| {
        let local = world.local();
        local.initialised()?;
        count.set(local.visible.len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) |world| {
        let local = world.local();
        local.initialised()?;
        let gpu = usize::try_from(ordinal).ok().and_then(|place| local.visible.get(place));
        device.set(*gpu.ok_or(Code::INVALID_DEVICE)? as i32)
    }

    fn cuDeviceGetName(name: Out<c_char>, length: i32, device: i32) |world| {
        let gpu = gpu(world, device)?;
        put(&gpu.name, &name, length)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) |world| {
        let gpu = world.local().gpu(device)?;
        uuid.set(world.machine.uuid(gpu))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |world| {
        let gpu = world.local().gpu(device)?;
        uuid.set(world.machine.uuid(gpu))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |world| {
        bytes.set(gpu(world, device)?.memory_bytes as usize)
    }

    fn cuDeviceGetPCIBusId(id: Out<c_char>, length: i32, device: i32) |world| {
        put(&pci_bus_id(gpu(world, device)?), &id, length)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: In<c_char>) |world| {
        world.local().initialised()?;
        if id.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of this function it is a C string.
        let id = unsafe { CStr::from_ptr(id.pointer()) };
        let wanted = pci_numbers(id.to_str().map_err(|_| Code::INVALID_VALUE)?);
        let wanted = wanted.ok_or(Code::INVALID_VALUE)?;
        let found = world.own.gpus.iter().position(|gpu| gpu.pci == wanted);
        let found = found.ok_or(Code::INVALID_DEVICE)? as u32;
        device.set(world.local().gpu((world.own.first_gpu + found) as i32)? as i32)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |world| {
        let local = world.local();
        let (gpu, other) = (local.gpu(device)?, local.gpu(peer)?);
        can.set(i32::from(gpu != other && has_access(&world.machine, gpu, other)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) |world| {
        let local = world.local();
        let (gpu, other) = (local.gpu(device)?, local.gpu(peer)?);
        if gpu == other {
            return Err(Code::INVALID_DEVICE);
        }
        let access = has_access(&world.machine, gpu, other);
        let pair = pair(&world.machine, gpu, other);
        value.set(match attribute {
            // CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: a smaller one is better.
            1 => i32::from(pair.link == Link::Pcie),
            // …_ACCESS_SUPPORTED
            2 => i32::from(access),
            // …_NATIVE_ATOMIC_SUPPORTED
            3 => i32::from(access && pair.atomics),
            // …_CUDA_ARRAY_ACCESS_SUPPORTED
            4 => i32::from(access && matches!(pair.link, Link::NvLink(_))),
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) |world| {
        let gpu = world.local().gpu(device)?;
        value.set(attribute_of(&world.machine, gpu as usize, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuGetProcAddress_v2(
        name: In<c_char>,
        function: Out<*mut std::ffi::c_void>,
        version: i32,
        flags: u64,
        status: Out<u32>,
    ) |_| {
        if name.is_null() || flags > 2 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of this function it is a C string.
        let name = unsafe { CStr::from_ptr(name.pointer()) }.to_string_lossy();
        let found = newest(&name);
        function.set(found.unwrap_or(std::ptr::null_mut()))?;
        let known = found.is_some() && version >= 2000;
        // CU_GET_PROC_ADDRESS_SUCCESS, or …_SYMBOL_NOT_FOUND.
        status.set_if_wanted(if known { 0 } else { 1 });
        if known { Ok(()) } else { Err(Code::NOT_FOUND) }
    }
}

/// The newest version of a function that has the name.
fn newest(name: &str) -> Option<*mut std::ffi::c_void> {
    let versions = [format!("{name}_v2"), name.to_owned()];
    let named = |version: &String| super::functions().find(|(own, _)| own == version);
    versions.iter().find_map(named).map(|(_, function)| function)
}

fn gpu(world: &World, device: i32) -> Result<&Gpu, Code> {
    let gpu = world.local().gpu(device)?;
    Ok(&world.machine.gpus[gpu as usize])
}

fn put(text: &str, target: &Out<c_char>, length: i32) -> Result<(), Code> {
    let length = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
    if target.pointer().is_null() || length == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract of these functions the target has that length.
    unsafe { put_text(text, target.pointer(), length) };
    Ok(())
}

fn pci_bus_id(gpu: &Gpu) -> String {
    let (domain, bus, device) = gpu.pci;
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// Domain, bus and device of `domain:bus:device.function`; domain and function can be left out.
fn pci_numbers(id: &str) -> Option<(u32, u32, u32)> {
    let number = |text| u32::from_str_radix(text, 16).ok();
    let parts: Vec<&str> = id.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (number(domain)?, bus, device),
        [bus, device] => (0, bus, device),
        _ => return None,
    };
    let (device, function) = device.split_once('.').unwrap_or((device, "0"));
    (number(function)? == 0).then_some((domain, number(bus)?, number(device)?))
}

/// The value of an attribute, by its number in the driver's header; `None`: it has none.
pub(crate) fn attribute_of(machine: &Machine, ordinal: usize, attribute: i32) -> Option<i32> {
    let gpu = &machine.gpus[ordinal];
    let value = match attribute {
        // The limits of every GPU since compute capability 7.0.
        1..=3 => 1024,       // threads of a block, and along its first two sides
        4 => 64,             // along its third side
        5 => i32::MAX,       // blocks along the grid's first side
        6 | 7 => 65_535,     // and along the others
        8 => 48 << 10,       // shared memory of a block
        9 => 64 << 10,       // constant memory
        10 => 32,            // threads of a warp
        11 => i32::MAX,      // pitch
        12 | 82 => 65_536,   // registers of a block, of a multiprocessor
        39 => 2048,          // threads of a multiprocessor
        81 | 97 => 96 << 10, // shared memory of a multiprocessor; of a block that asks
        106 => 32,           // blocks of a multiprocessor
        // What this GPU has.
        13 => kilohertz(gpu.sm_clock_mhz),
        16 => gpu.multiprocessors as i32,
        33 => gpu.pci.1 as i32,
        34 => gpu.pci.2 as i32,
        36 => kilohertz(gpu.memory_clock_mhz),
        37 => gpu.memory_bus_bits as i32,
        38 => 32 << 20, // level-2 cache; nothing here depends on it
        40 => 2,        // copy engines that the driver admits to
        50 => gpu.pci.0 as i32,
        75 => gpu.compute_capability.0 as i32,
        76 => gpu.compute_capability.1 as i32,
        134 => gpu.numa_node as i32, // nearest NUMA node of the host
        // What it can do here.
        15 | 19 | 31 | 41 => 1, // overlap, mapped host memory, several kernels, one address space
        32 => 1,                // ECC
        78 => 1,                // stream priorities
        91 | 99 => 1,           // registered host memory, and by its own address
        92 | 93 | 94 | 122 | 123 => 1, // waits for and writes of values, 64 bits, NOR
        102 | 103 => 1,         // memory by cuMemCreate, exported as a file descriptor
        // What it is not, or what is not simulated.
        14 | 30 => 512,                   // alignment of textures and surfaces
        17 | 18 | 20 | 35 => 0,           // display limit, integrated, compute mode, TCC
        79 | 80 | 90 | 95 => 0,           // L1 controls, preemption, cooperative launches
        83..=86 | 88 | 89 | 96 | 98 => 0, // managed and pageable memory, atomics on host memory
        87 => 2,                          // single to double precision
        100 | 101 | 104 | 105 | 107..=112 | 114 => 0,
        113 => 0,                                       // read-only registration
        115 | 119 => 0,                                 // memory pools
        116 | 117 => i32::from(machine.host.gpudirect), // GPUDirect RDMA, and the host flushes it
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES, …_NONE
        118 => i32::from(gpu.orders_writes()) * 200,
        120 | 121 => 0,             // clusters, deferred mapping
        124 => 0,                   // memory given away as dma-bufs
        125 => 0,                   // events between processes
        126 => 1,                   // domains of memory synchronisation
        127 | 129 | 130 | 133 => 0, // tensor maps, NUMA, MPS
        // A driver that is too old does not know the questions.
        132 if machine.driver_version < 12_010 => return None,
        132 => i32::from(machine.gives_multicast(ordinal as u32)),
        128 if machine.driver_version < 12_030 => return None,
        128 => i32::from(gives_fabric_handles(machine, ordinal as u32)),
        131 => -1, // the GPU is no NUMA node
        _ => return None,
    };
    Some(value)
}

fn kilohertz(mhz: u32) -> i32 {
    i32::try_from(u64::from(mhz) * 1000).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::pci_numbers;

    #[test]
    fn a_pci_bus_id_is_read_with_or_without_domain_and_function() {
        assert_eq!(pci_numbers("0001:0A:1f.0"), Some((1, 10, 31)));
        assert_eq!(pci_numbers("0000:53:00"), Some((0, 0x53, 0)));
        assert_eq!(pci_numbers("53:00.0"), Some((0, 0x53, 0)));
        assert_eq!(pci_numbers("53:00.1"), None, "a GPU is function 0");
        assert_eq!(pci_numbers("GPU-53"), None);
    }
}
