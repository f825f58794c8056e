//! Registered memory, here and at a peer.

use std::{
    ffi::c_void,
    fmt,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    rc::Rc,
};

use serde::{Deserialize, Serialize};

use super::{
    Domain, Peer,
    bindings::{
        FI_ENABLE, FI_ENOMEM, FI_ENOSYS, FI_HMEM_CUDA, FI_HMEM_SYSTEM, FI_MR_ENDPOINT,
        FI_MR_VIRT_ADDR, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE,
        fid_ep, fid_mr, iovec,
    },
    grown::{FI_MR_DMABUF, fi_mr_attr, fi_mr_dmabuf, fi_mr_memory},
    object::Object,
};
use crate::{
    ffi::{
        CallError,
        cuda::{self, HostMemory},
        host::{self, HostBuffer},
    },
    units::Bytes,
};

/// What an interface may do with a region.
const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Memory to register.
pub enum Memory {
    /// The host's.
    Host(HostBuffer),
    /// The host's, pinned for GPUs.
    Pinned(Rc<HostMemory>),
    /// A GPU's, which the provider finds through CUDA.
    Gpu {
        /// Keeps the memory.
        memory: Rc<dyn cuda::Memory>,
        /// The GPU's ordinal in CUDA.
        ordinal: u32,
    },
    /// A GPU's, which the kernel finds as a part of a dma-buf.
    DmaBuf {
        /// Keeps the memory.
        memory: Rc<dyn cuda::Memory>,
        /// The GPU's ordinal in CUDA.
        ordinal: u32,
        /// The dma-buf.
        descriptor: OwnedFd,
        /// Where in the dma-buf the memory begins.
        offset: Bytes,
    },
}

/// Memory that several endpoints can register; only they reach it from here on.
#[derive(Clone)]
pub struct SharedMemory(Rc<Memory>);

impl From<Memory> for SharedMemory {
    fn from(memory: Memory) -> Self {
        Self(Rc::new(memory))
    }
}

/// Registered memory of this process. The endpoint keeps the memory until it is closed, so that
/// nothing under way, from here or from a peer, can outlive it.
///
/// The bytes are reached by copies, as other sides may write them at any time.
pub struct Region {
    memory: Rc<Memory>,
    all: Slice,
    remote: RemoteRegion,
}

/// A part of a region, for the endpoint that the region belongs to. It can outlive both; no other
/// endpoint takes it.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub(super) endpoint: u64,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    pub(super) descriptor: *mut c_void,
    pub(super) is_host: bool,
}

/// What a peer must know to write and read a region; it comes from [`Region::remote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    address: u64,
    key: u64,
    size: Bytes,
}

/// A place in a region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub(super) peer: Peer,
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) room: u64,
}

impl RemoteRegion {
    /// The place at `offset` of this region of `peer`.
    ///
    /// # Panics
    ///
    /// It is not inside.
    pub fn at(&self, peer: Peer, offset: Bytes) -> Remote {
        let room = self.size.get().checked_sub(offset.get());
        let room = room.unwrap_or_else(|| {
            panic!("{} is not inside a region of {}", offset.get(), self.size);
        });
        Remote { peer, address: self.address.wrapping_add(offset.get()), key: self.key, room }
    }

    /// How much it is.
    pub fn size(&self) -> Bytes {
        self.size
    }
}

impl Slice {
    /// `size` bytes of it from `offset` on.
    ///
    /// # Panics
    ///
    /// They are not all inside.
    #[inline]
    pub fn slice(self, offset: Bytes, size: Bytes) -> Self {
        let lengths = offset.to_len().ok().zip(size.to_len().ok());
        let inside = lengths.filter(|(offset, length)| {
            offset.checked_add(*length).is_some_and(|end| end <= self.length)
        });
        let Some((offset, length)) = inside else {
            panic!("{size} at {} are not inside {}", offset.get(), self.size());
        };
        Self { address: self.address.wrapping_byte_add(offset), length, ..self }
    }

    /// How much it is.
    pub fn size(self) -> Bytes {
        Bytes::of_len(self.length)
    }
}

impl Region {
    /// All of it, for this endpoint's operations.
    pub fn all(&self) -> Slice {
        self.all
    }

    /// What a peer must know of it.
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }

    /// How much it is.
    pub fn size(&self) -> Bytes {
        self.all.size()
    }

    /// Copies `source` into host memory at `offset`. The caller's protocol must keep others from
    /// these bytes meanwhile.
    ///
    /// # Panics
    ///
    /// The range is not inside, or the memory is a GPU's.
    pub fn write(&self, offset: Bytes, source: &[u8]) {
        let target = self.host(offset, source.len());
        // SAFETY: the range is inside host memory that `self` keeps, and no part of any slice:
        // its owner is shown to nobody.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    /// Copies host memory at `offset` into `target`. The caller's protocol must keep others from
    /// writing these bytes meanwhile.
    ///
    /// # Panics
    ///
    /// The range is not inside, or the memory is a GPU's.
    pub fn read(&self, offset: Bytes, target: &mut [u8]) {
        let source = self.host(offset, target.len());
        // SAFETY: as for `write`.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    /// The memory, for the endpoint to keep.
    pub(super) fn memory(&self) -> Rc<Memory> {
        Rc::clone(&self.memory)
    }

    fn host(&self, offset: Bytes, length: usize) -> *mut u8 {
        assert!(self.all.is_host, "a GPU's memory is no host memory");
        self.all.slice(offset, Bytes::of_len(length)).address.cast()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("all", &self.all).finish_non_exhaustive()
    }
}

impl Memory {
    fn is_host(&self) -> bool {
        match self {
            Self::Host(_) | Self::Pinned(_) => true,
            Self::Gpu { .. } | Self::DmaBuf { .. } => false,
        }
    }

    /// Where it is.
    fn place(&self) -> (*mut c_void, usize) {
        let (address, length) = match self {
            Self::Host(buffer) => buffer.memory(),
            Self::Pinned(memory) => memory.memory(),
            Self::Gpu { memory, .. } | Self::DmaBuf { memory, .. } => {
                let all = memory.all();
                // A GPU's address is only ever passed on.
                let address = usize::try_from(all.address()).unwrap_or(usize::MAX);
                (ptr::without_provenance_mut(address), all.length())
            }
        };
        (address.cast(), length)
    }
}

/// Registers `memory` with `domain` for `endpoint`, whose number is `number`.
pub(super) fn register(
    domain: &Domain,
    endpoint: &Object<fid_ep>,
    number: u64,
    SharedMemory(memory): SharedMemory,
) -> Result<(Object<fid_mr>, Region), CallError> {
    let (address, length) = memory.place();
    let library = domain.info().library();
    let object = || format!("{} with {}", Bytes::of_len(length), domain.info());
    let range = iovec { iov_base: address, iov_len: length };
    let mut attr = attributes(&memory, &range, domain.take_key());
    let mut flags = 0;
    let part;
    if let Memory::DmaBuf { descriptor, offset, .. } = &*memory {
        if !library.has_dma_buf() {
            return Err(library.error("fi_mr_regattr", -FI_ENOSYS, "a dma-buf".to_owned()));
        }
        let base_addr = address.wrapping_byte_sub(offset.to_len().unwrap_or_default());
        let fd = descriptor.as_raw_fd();
        part = fi_mr_dmabuf { fd, offset: offset.get(), len: length, base_addr };
        attr.memory.dmabuf = &raw const part;
        flags = FI_MR_DMABUF;
    }
    let regattr = domain.object.function("fi_mr_regattr", |domain| domain.mr, |ops| ops.regattr)?;
    let mut raw = ptr::null_mut();
    // SAFETY: the domain is open; `attr` and what it points to are live locals, and the range is
    // memory that stays until the region is closed; `raw` is only written.
    let code = unsafe { regattr(domain.object.fid(), &raw const attr, flags, &raw mut raw) };
    if code == -FI_ENOMEM {
        let source = library.cause(code, host::lockable().map(remedy));
        return Err(CallError::new("fi_mr_regattr", object(), source));
    }
    library.check("fi_mr_regattr", code, object)?;
    // SAFETY: the region has just been opened, for this owner.
    let mr = unsafe { Object::own(library, "a memory region", raw) };
    if domain.info().registers(FI_MR_ENDPOINT) {
        mr.bind("fi_mr_bind", endpoint, 0)?;
        mr.control("fi_mr_enable", FI_ENABLE.cast_signed())?;
    }
    // SAFETY: the region is open; its key and descriptor stay as they are from here on.
    let opened = unsafe { raw.read() };
    let is_virtual = domain.info().registers(FI_MR_VIRT_ADDR);
    let remote = RemoteRegion {
        address: if is_virtual { address.addr() as u64 } else { 0 },
        key: opened.key,
        size: Bytes::of_len(length),
    };
    let (is_host, descriptor) = (memory.is_host(), opened.mem_desc);
    let all = Slice { endpoint: number, address, length, descriptor, is_host };
    Ok((mr, Region { memory, all, remote }))
}

/// What is said of `memory`, which is at `range`, to register it.
fn attributes(memory: &Memory, range: &iovec, requested_key: u64) -> fi_mr_attr {
    let (iface, device) = match memory {
        Memory::Host(_) | Memory::Pinned(_) => (FI_HMEM_SYSTEM, 0),
        // The union's member is an `int`.
        Memory::Gpu { ordinal, .. } | Memory::DmaBuf { ordinal, .. } => {
            (FI_HMEM_CUDA, u64::from_ne_bytes(in_front(ordinal.to_ne_bytes())))
        }
    };
    fi_mr_attr {
        memory: fi_mr_memory { mr_iov: range },
        iov_count: 1,
        access: ACCESS,
        offset: 0,
        requested_key,
        context: ptr::null_mut(),
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
        iface,
        device,
        hmem_data: ptr::null_mut(),
    }
}

/// What to do when an interface may not lock what it is to reach (`ibv_reg_mr(3)`, ENOMEM).
fn remedy(limit: Bytes) -> String {
    format!(
        "this process may lock {limit}: raise that by `ulimit -l unlimited`, or for good in \
         /etc/security/limits.conf"
    )
}

/// The bytes of an `int` at the beginning of a union of eight bytes.
fn in_front([a, b, c, d]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, 0, 0, 0, 0]
}
