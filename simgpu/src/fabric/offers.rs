//! What the interfaces offer: `fi_getinfo` and what goes with it.

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
};

use super::{
    bindings as fi,
    device::{MESSAGE_MAX, RDMA_MAX},
    words::{FI_ORDER_SAS, FI_PROTO_EFA},
};
use crate::{machine::Machine, system};

/// The two fabrics on the same interfaces.
pub(super) const EFA: &CStr = c"efa";
pub(super) const EFA_DIRECT: &CStr = c"efa-direct";

/// What every offer can do.
const CAPS: u64 = fi::FI_MSG
    | fi::FI_RMA
    | fi::FI_READ
    | fi::FI_WRITE
    | fi::FI_RECV
    | fi::FI_SEND
    | fi::FI_REMOTE_READ
    | fi::FI_REMOTE_WRITE;

/// What is asked for, as far as it decides.
#[derive(Debug, Default)]
pub(super) struct Hints {
    pub caps: u64,
    pub mr_mode: i32,
    pub provider: Option<CString>,
    pub fabric: Option<CString>,
    pub domain: Option<CString>,
}

/// An offer with all its parts, of memory that C's programs free.
///
/// # Safety
///
/// Each part is to be freed by [`free`] alone.
pub(super) fn empty() -> *mut fi::fi_info {
    let info = zeroed::<fi::fi_info>();
    // SAFETY: it is new, and nobody else has it.
    let parts = unsafe { &mut *info };
    parts.tx_attr = zeroed();
    parts.rx_attr = zeroed();
    parts.ep_attr = zeroed();
    parts.domain_attr = zeroed();
    parts.fabric_attr = zeroed();
    info
}

/// Memory of zeroes, which every part of an offer has as a value.
fn zeroed<T>() -> *mut T {
    // SAFETY: the call takes numbers only.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    assert!(!memory.is_null(), "there is no memory");
    memory.cast()
}

fn copy(text: &CStr) -> *mut c_char {
    // SAFETY: the text ends in NUL.
    unsafe { libc::strdup(text.as_ptr()) }
}

impl Hints {
    /// Reads them.
    ///
    /// # Safety
    ///
    /// `info` is null or a complete offer.
    pub(super) unsafe fn read(info: *const fi::fi_info) -> Self {
        // SAFETY: the caller's promise.
        let Some(info) = (unsafe { info.as_ref() }) else { return Self::default() };
        // SAFETY: as above.
        let fabric = unsafe { info.fabric_attr.as_ref() };
        // SAFETY: as above.
        let domain = unsafe { info.domain_attr.as_ref() };
        let text = |text: *mut c_char| {
            // SAFETY: a name of an offer is null or ends in NUL.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
        };
        Self {
            caps: info.caps,
            mr_mode: domain.map_or(0, |domain| domain.mr_mode),
            provider: fabric.and_then(|fabric| text(fabric.prov_name)),
            fabric: fabric.and_then(|fabric| text(fabric.name)),
            domain: domain.and_then(|domain| text(domain.name)),
        }
    }

    fn wants(&self, fabric: &CStr, domain: &CStr) -> bool {
        let is = |wanted: &Option<CString>, name: &CStr| {
            wanted.as_ref().is_none_or(|wanted| wanted.as_c_str() == name)
        };
        is(&self.provider, EFA) && is(&self.fabric, fabric) && is(&self.domain, domain)
    }
}

/// The name of an interface's device.
fn device_name(machine: &Machine, nic: usize) -> CString {
    let (domain, bus, device) = machine.nics[nic].pci;
    CString::new(system::rdma_name((domain, bus, device))).unwrap_or_default()
}

/// The name of its domain, which libfabric makes of that.
fn domain_name(machine: &Machine, nic: usize) -> CString {
    let mut name = device_name(machine, nic).into_bytes();
    name.extend(b"-rdm");
    CString::new(name).unwrap_or_default()
}

/// The interface whose domain has this name, by its number among all hosts'.
pub(super) fn nic_of(machine: &Machine, domain: &CStr) -> Option<usize> {
    let mut nics = 0..machine.nics.len();
    let found = nics.find(|nic| domain_name(machine, *nic).as_c_str() == domain)?;
    Some(machine.first_nic + found)
}

/// The offers that answer `hints`, as a list; null if there are none.
pub(super) fn offers(machine: &Machine, hints: &Hints) -> *mut fi::fi_info {
    let mut first = ptr::null_mut();
    let mut last: *mut fi::fi_info = ptr::null_mut();
    // efa-direct comes before efa.
    for fabric in [EFA_DIRECT, EFA] {
        let is_direct = fabric == EFA_DIRECT;
        let has_hmem = hints.caps & fi::FI_HMEM != 0;
        let cannot = is_direct && !machine.efa.writes
            || has_hmem && hints.mr_mode & fi::FI_MR_HMEM == 0
            || has_hmem && is_direct && !machine.host.gpudirect
            || has_hmem && machine.host.cuda_runtime.is_none()
            || is_direct && hints.mr_mode & fi::FI_MR_LOCAL == 0;
        if cannot {
            continue;
        }
        for nic in (0..machine.nics.len()).filter(|nic| machine.nics[*nic].is_up()) {
            if !hints.wants(fabric, &domain_name(machine, nic)) {
                continue;
            }
            let offer = offer(machine, nic, fabric, has_hmem);
            // SAFETY: `last` is null or an offer of this list.
            match unsafe { last.as_mut() } {
                Some(last) => last.next = offer,
                None => first = offer,
            }
            last = offer;
        }
    }
    first
}

fn offer(machine: &Machine, nic: usize, fabric: &CStr, has_hmem: bool) -> *mut fi::fi_info {
    let is_direct = fabric == EFA_DIRECT;
    let offer = empty();
    // SAFETY: it is new, with all parts, and nobody else has it.
    let info = unsafe { &mut *offer };
    info.caps = CAPS | if has_hmem { fi::FI_HMEM } else { 0 };
    info.mode = if is_direct { fi::FI_CONTEXT2 } else { 0 };
    // SAFETY: as above.
    let tx = unsafe { &mut *info.tx_attr };
    // SAFETY: as above.
    let rx = unsafe { &mut *info.rx_attr };
    // SAFETY: as above.
    let endpoint = unsafe { &mut *info.ep_attr };
    // SAFETY: as above.
    let of_domain = unsafe { &mut *info.domain_attr };
    // SAFETY: as above.
    let of_fabric = unsafe { &mut *info.fabric_attr };
    (tx.caps, rx.caps) = (info.caps, info.caps);
    tx.size = machine.efa.queue_entries as usize;
    rx.size = machine.efa.queue_entries as usize;
    tx.inject_size = if is_direct { 32 } else { 4000 };
    (tx.iov_limit, tx.rma_iov_limit, rx.iov_limit) = (1, 1, 1);
    if !is_direct {
        (tx.msg_order, rx.msg_order) = (FI_ORDER_SAS, FI_ORDER_SAS);
    }
    endpoint.type_ = fi::FI_EP_RDM;
    endpoint.protocol = FI_PROTO_EFA;
    endpoint.max_msg_size = if is_direct { RDMA_MAX.max(MESSAGE_MAX) as usize } else { usize::MAX };
    of_domain.name = copy(&domain_name(machine, nic));
    of_domain.threading = fi::FI_THREAD_DOMAIN;
    of_domain.control_progress = fi::FI_PROGRESS_MANUAL;
    of_domain.data_progress = fi::FI_PROGRESS_MANUAL;
    of_domain.resource_mgmt = fi::FI_RM_ENABLED;
    of_domain.av_type = fi::FI_AV_TABLE;
    of_domain.mr_mode = fi::FI_MR_VIRT_ADDR
        | fi::FI_MR_ALLOCATED
        | fi::FI_MR_PROV_KEY
        | if is_direct { fi::FI_MR_LOCAL } else { 0 }
        | if has_hmem { fi::FI_MR_HMEM } else { 0 };
    of_domain.cq_data_size = 4;
    of_domain.mr_key_size = 4;
    of_fabric.name = copy(fabric);
    of_fabric.prov_name = copy(EFA);
    of_fabric.api_version = super::VERSION;
    info.nic = interface(machine, nic);
    offer
}

fn interface(machine: &Machine, nic: usize) -> *mut fi::fid_nic {
    let of = &machine.nics[nic];
    let raw: *mut fi::fid_nic = zeroed();
    let device: *mut fi::fi_device_attr = zeroed();
    // SAFETY: it is new, and nobody else has it.
    unsafe { (*device).name = copy(&device_name(machine, nic)) };
    let bus: *mut fi::fi_bus_attr = zeroed();
    let (domain_id, bus_id, device_id) = of.pci;
    let pci = fi::fi_pci_attr {
        domain_id: domain_id as u16,
        bus_id: bus_id as u8,
        device_id: device_id as u8,
        function_id: 0,
    };
    let attr = fi::fi_bus_attr__bindgen_ty_1 { pci };
    // SAFETY: as above.
    unsafe { bus.write(fi::fi_bus_attr { bus_type: fi::FI_BUS_PCI, attr }) };
    let link: *mut fi::fi_link_attr = zeroed();
    // SAFETY: as above.
    let of_link = unsafe { &mut *link };
    of_link.mtu = MESSAGE_MAX as usize;
    of_link.speed = of.rate_gbps as usize * 1_000_000_000;
    of_link.state = fi::FI_LINK_UP;
    of_link.network_type = copy(c"Ethernet");
    // SAFETY: as above.
    let whole = unsafe { &mut *raw };
    (whole.device_attr, whole.bus_attr, whole.link_attr) = (device, bus, link);
    raw
}

/// Frees a list of offers.
///
/// # Safety
///
/// `info` is null, or a list that [`empty`] or [`offers`] made, with names of `strdup`.
pub(super) unsafe fn free(mut info: *mut fi::fi_info) {
    while !info.is_null() {
        // SAFETY: the caller's promise; each is freed once.
        let of = unsafe { info.read() };
        // SAFETY: every offer has these parts.
        let (domain, fabric) = unsafe { (of.domain_attr.read(), of.fabric_attr.read()) };
        let mut parts: Vec<*mut libc::c_void> = vec![
            domain.name.cast(),
            fabric.name.cast(),
            fabric.prov_name.cast(),
            of.tx_attr.cast(),
            of.rx_attr.cast(),
            of.ep_attr.cast(),
            of.domain_attr.cast(),
            of.fabric_attr.cast(),
        ];
        // SAFETY: an offer has no interface or a whole one.
        if let Some(nic) = unsafe { of.nic.as_ref() } {
            // SAFETY: as above.
            let (device, link) = unsafe { (nic.device_attr.read(), nic.link_attr.read()) };
            parts.extend([
                device.name.cast(),
                link.network_type.cast(),
                nic.device_attr.cast(),
                nic.bus_attr.cast(),
                nic.link_attr.cast(),
                of.nic.cast(),
            ]);
        }
        parts.push(info.cast());
        for part in parts {
            // SAFETY: null, or of C's allocator, and freed once.
            unsafe { libc::free(part) };
        }
        info = of.next;
    }
}
