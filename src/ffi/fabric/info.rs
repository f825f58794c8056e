//! What the providers offer: one offer for each interface and kind of endpoint.

use std::{
    ffi::{CString, c_char, c_int, c_uint},
    fmt, io, ptr,
    rc::Rc,
};

use serde::Serialize;

use super::{
    Library,
    bindings::{
        FI_BUS_PCI, FI_CONTEXT, FI_CONTEXT2, FI_ENODATA, FI_EP_RDM, FI_HMEM, FI_LINK_DOWN,
        FI_LINK_UP, FI_MR_ALLOCATED, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY,
        FI_MR_VIRT_ADDR, FI_MSG, FI_PROGRESS_MANUAL, FI_RM_ENABLED, FI_RMA, FI_THREAD_DOMAIN,
        FI_TYPE_CAPS, FI_TYPE_MODE, FI_TYPE_MR_MODE, FI_TYPE_MSG_ORDER, FI_TYPE_PROGRESS,
        FI_TYPE_PROTOCOL, FI_TYPE_THREADING, fi_bus_attr, fi_device_attr, fi_domain_attr,
        fi_ep_attr, fi_fabric_attr, fi_info, fi_link_attr, fi_rx_attr, fi_tx_attr, fid_nic,
    },
};
use crate::{
    ffi::{CallError, text_of},
    units::Bytes,
};

/// How regions may have to be registered; [`Endpoint::register`](super::Endpoint::register)
/// serves each of these. Without `FI_MR_RAW`, whose keys are longer than a word.
const MR_MODE: c_int =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

/// Which offers are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// Of this provider, such as `efa` or `tcp`; of each without.
    pub provider: Option<&'a str>,
    /// Of this fabric, such as `efa-direct`; of each without.
    pub fabric: Option<&'a str>,
    /// Of this domain, such as `rdmap0s6-rdm` or `eth0`; of each without.
    pub domain: Option<&'a str>,
    /// For memory of GPUs too.
    pub gpu_memory: bool,
}

/// The offers of one answer of the library; freed when the last of them is dropped.
struct List {
    library: &'static Library,
    first: *mut fi_info,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `fi_getinfo` or `fi_dupinfo`, and is freed only here.
        unsafe { (self.library.calls.fi_freeinfo)(self.first) };
    }
}

/// One offer of a provider.
#[derive(Clone)]
pub struct Info {
    list: Rc<List>,
    pub(super) raw: *mut fi_info,
    pub(super) parts: Parts,
    facts: Rc<Facts>,
}

/// What an offer consists of. Its pointers live as long as the offer's list.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) info: fi_info,
    pub(super) tx: fi_tx_attr,
    pub(super) rx: fi_rx_attr,
    pub(super) endpoint: fi_ep_attr,
    pub(super) domain: fi_domain_attr,
    pub(super) fabric: fi_fabric_attr,
}

/// What a provider says of itself and of one interface, in the words of `fi_getinfo(3)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// `prov_name`, such as `efa` or `tcp;ofi_rxm`.
    pub provider: String,
    /// The fabric's name, such as `efa-direct` or the address of a network.
    pub fabric: String,
    /// The domain's name, such as `rdmap0s6-rdm` or `eth0`.
    pub domain: String,
    /// The network interface, where the provider knows it.
    pub nic: Option<Nic>,
    /// The endpoints' protocol, such as `FI_PROTO_EFA`.
    pub protocol: String,
    /// What the endpoints can do.
    pub caps: String,
    /// What the caller must do for each operation.
    pub mode: String,
    /// What the caller must do to register memory.
    pub mr_mode: String,
    /// The most that one operation moves.
    pub max_msg_size: Bytes,
    /// The most that one operation takes over before its call returns.
    pub inject_size: Bytes,
    /// Operations that can be under way from here.
    pub tx_size: usize,
    /// Receives that can be posted.
    pub rx_size: usize,
    /// The data that an operation can bring along to the peer's completion queue.
    pub cq_data_size: Bytes,
    /// Which operations stay in order.
    pub msg_order: String,
    /// The largest writes whose data is stored in the order of `msg_order`.
    pub max_order_waw_size: Bytes,
    /// Which calls the caller keeps apart.
    pub threading: String,
    /// Who moves connections on.
    pub control_progress: String,
    /// Who moves data on.
    pub data_progress: String,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Such as `rdmap0s6`.
    pub name: Option<String>,
    /// Where it is, in the form of the kernel: `0000:00:06.0`.
    pub pci_bus_id: Option<String>,
    /// Its link's speed, in bits per second; 0 where it is not known.
    pub link_bits_per_s: u64,
    /// Its link's state.
    pub link_state: LinkState,
    /// Such as `Ethernet`.
    pub network_type: Option<String>,
}

/// Whether a link can carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// It can.
    Up,
    /// It cannot.
    Down,
    /// The provider does not know.
    Unknown,
}

impl Library {
    /// What the providers offer of reliable endpoints without connections (`FI_EP_RDM`) that send
    /// and receive, read and write; the best first, by the library's opinion. None is no error.
    ///
    /// # Errors
    ///
    /// The library's refusal; that no provider offers this is none.
    pub fn offers(&'static self, query: &Query<'_>) -> Result<Vec<Info>, CallError> {
        let object = || query.to_string();
        let hints = self.hints(query)?;
        let mut first = ptr::null_mut();
        // SAFETY: `hints` is a complete offer of the library's own; neither name is given; `first`
        // is a live local that the call only writes.
        let code = unsafe {
            (self.calls.fi_getinfo)(
                self.api_version(),
                ptr::null(),
                ptr::null(),
                0,
                hints.first,
                &raw mut first,
            )
        };
        if code == -FI_ENODATA {
            return Ok(Vec::new());
        }
        self.check("fi_getinfo", code, object)?;
        let list = Rc::new(List { library: self, first });
        let mut offers = Vec::new();
        let mut next = first;
        while !next.is_null() {
            // SAFETY: `next` is an offer of the list, which `list` keeps.
            let parts = unsafe { Parts::read(next) };
            // SAFETY: as above.
            let facts = Rc::new(unsafe { Facts::read(self, &parts) });
            // Layered providers offer the same several times over, and 1.17's do not look at the
            // domain's name.
            if query.matches(&facts) && !offers.iter().any(|offer: &Info| offer.facts == facts) {
                offers.push(Info { list: Rc::clone(&list), raw: next, parts, facts });
            }
            next = parts.info.next;
        }
        Ok(offers)
    }

    /// The offer that is asked for, as the library takes it.
    fn hints(&'static self, query: &Query<'_>) -> Result<List, CallError> {
        // SAFETY: without an offer to copy the call makes an empty one.
        let first = unsafe { (self.calls.fi_dupinfo)(ptr::null()) };
        if first.is_null() {
            let source = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(CallError::new("fi_dupinfo", query.to_string(), source));
        }
        // From here on a failure frees it.
        let hints = List { library: self, first };
        // SAFETY: nobody else has the offer.
        let info = unsafe { &mut *first };
        // SAFETY: an empty offer has all its parts, of which nobody else has one.
        let endpoint = unsafe { &mut *info.ep_attr };
        // SAFETY: as above.
        let domain = unsafe { &mut *info.domain_attr };
        // SAFETY: as above.
        let fabric = unsafe { &mut *info.fabric_attr };
        info.caps = FI_MSG | FI_RMA;
        // Each operation has a place of its own for the provider's notes.
        info.mode = FI_CONTEXT | FI_CONTEXT2;
        endpoint.type_ = FI_EP_RDM;
        domain.mr_mode = MR_MODE;
        if query.gpu_memory {
            info.caps |= FI_HMEM;
            domain.mr_mode |= FI_MR_HMEM;
        }
        // One thread makes all calls of a domain, and polls: no thread and no lock of the
        // provider's is between it and the data.
        domain.threading = FI_THREAD_DOMAIN;
        domain.control_progress = FI_PROGRESS_MANUAL;
        domain.data_progress = FI_PROGRESS_MANUAL;
        domain.resource_mgmt = FI_RM_ENABLED;
        // The names are `malloc`ed, as the offer's own are when it is freed.
        domain.name = name(query.domain, query)?;
        fabric.name = name(query.fabric, query)?;
        fabric.prov_name = name(query.provider, query)?;
        Ok(hints)
    }

    /// The library's words for `value`, which is of the type that `kind` says.
    fn words<T>(&self, value: &T, kind: c_uint) -> String {
        let mut buffer = [0; 1024];
        let value = ptr::from_ref(value).cast();
        // SAFETY: `value` is alive; `buffer` is as long as the call is told, which ends it in NUL.
        let text =
            unsafe { (self.calls.fi_tostr_r)(buffer.as_mut_ptr(), buffer.len(), value, kind) };
        // SAFETY: the answer is null or `buffer`.
        unsafe { text_of(text) }.unwrap_or_default()
    }
}

impl Info {
    /// What the provider says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn library(&self) -> &'static Library {
        self.list.library
    }

    /// Whether regions are registered in a way of `mode`.
    pub(super) fn registers(&self, mode: c_int) -> bool {
        self.parts.domain.mr_mode & mode != 0
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.facts.provider, self.facts.domain)
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Info").field(&self.facts).finish()
    }
}

impl Query<'_> {
    fn matches(&self, facts: &Facts) -> bool {
        self.fabric.is_none_or(|name| name == facts.fabric)
            && self.domain.is_none_or(|name| name == facts.domain)
    }
}

impl fmt::Display for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.provider.unwrap_or("any provider"))?;
        for (what, name) in [("fabric", self.fabric), ("domain", self.domain)] {
            if let Some(name) = name {
                write!(f, ", {what} {name}")?;
            }
        }
        Ok(())
    }
}

impl Parts {
    /// Copies the offer at `raw`.
    ///
    /// # Safety
    ///
    /// `raw` is a complete offer.
    unsafe fn read(raw: *mut fi_info) -> Self {
        // SAFETY: the caller's promise.
        let info = unsafe { raw.read() };
        Self {
            info,
            // SAFETY: a complete offer has this part.
            tx: unsafe { info.tx_attr.read() },
            // SAFETY: as above.
            rx: unsafe { info.rx_attr.read() },
            // SAFETY: as above.
            endpoint: unsafe { info.ep_attr.read() },
            // SAFETY: as above.
            domain: unsafe { info.domain_attr.read() },
            // SAFETY: as above.
            fabric: unsafe { info.fabric_attr.read() },
        }
    }
}

impl Facts {
    /// Copies what an offer says.
    ///
    /// # Safety
    ///
    /// The offer that `parts` was read from is alive.
    unsafe fn read(library: &'static Library, parts: &Parts) -> Self {
        let Parts { info, tx, rx, endpoint, domain, fabric } = parts;
        let text = |name: *mut c_char| {
            // SAFETY: a name in an offer is null or ends in NUL, and lives as long as the offer.
            unsafe { text_of(name) }.unwrap_or_default()
        };
        Self {
            provider: text(fabric.prov_name),
            fabric: text(fabric.name),
            domain: text(domain.name),
            // SAFETY: an offer has no interface or a complete one, which lives as long.
            nic: (!info.nic.is_null()).then(|| unsafe { Nic::read(info.nic) }),
            protocol: library.words(&endpoint.protocol, FI_TYPE_PROTOCOL),
            caps: library.words(&info.caps, FI_TYPE_CAPS),
            mode: library.words(&info.mode, FI_TYPE_MODE),
            mr_mode: library.words(&domain.mr_mode, FI_TYPE_MR_MODE),
            max_msg_size: Bytes::of_len(endpoint.max_msg_size),
            inject_size: Bytes::of_len(tx.inject_size),
            tx_size: tx.size,
            rx_size: rx.size,
            cq_data_size: Bytes::of_len(domain.cq_data_size),
            msg_order: library.words(&tx.msg_order, FI_TYPE_MSG_ORDER),
            max_order_waw_size: Bytes::of_len(endpoint.max_order_waw_size),
            threading: library.words(&domain.threading, FI_TYPE_THREADING),
            control_progress: library.words(&domain.control_progress, FI_TYPE_PROGRESS),
            data_progress: library.words(&domain.data_progress, FI_TYPE_PROGRESS),
        }
    }
}

impl Nic {
    /// Copies what is known of an interface.
    ///
    /// # Safety
    ///
    /// `raw` is an interface of an offer that is alive.
    unsafe fn read(raw: *mut fid_nic) -> Self {
        // SAFETY: the caller's promise.
        let nic = unsafe { raw.read() };
        // SAFETY: each part of an interface is null or complete.
        let device: Option<fi_device_attr> = unsafe { nic.device_attr.as_ref() }.copied();
        // SAFETY: as above.
        let bus: Option<fi_bus_attr> = unsafe { nic.bus_attr.as_ref() }.copied();
        // SAFETY: as above.
        let link: Option<fi_link_attr> = unsafe { nic.link_attr.as_ref() }.copied();
        let text = |name: *mut c_char| {
            // SAFETY: a name of an interface is null or ends in NUL, and lives as long.
            unsafe { text_of(name) }
        };
        let pci_bus_id = bus.filter(|bus| bus.bus_type == FI_BUS_PCI).map(|bus| {
            // SAFETY: the address of a bus of this type is that of PCI.
            let pci = unsafe { bus.attr.pci };
            let [domain, bus] = [u32::from(pci.domain_id), u32::from(pci.bus_id)];
            format!("{domain:04x}:{bus:02x}:{:02x}.{:x}", pci.device_id, pci.function_id)
        });
        Self {
            name: device.and_then(|device| text(device.name)),
            pci_bus_id,
            link_bits_per_s: link.map_or(0, |link| link.speed as u64),
            link_state: match link.map(|link| link.state) {
                Some(FI_LINK_UP) => LinkState::Up,
                Some(FI_LINK_DOWN) => LinkState::Down,
                _ => LinkState::Unknown,
            },
            network_type: link.and_then(|link| text(link.network_type)),
        }
    }
}

/// `name` where an offer holds it, who frees it; null without one.
fn name(name: Option<&str>, query: &Query<'_>) -> Result<*mut c_char, CallError> {
    let Some(name) = name else { return Ok(ptr::null_mut()) };
    let refused = |source: io::Error| CallError::new("fi_getinfo", query.to_string(), source);
    let name = CString::new(name).map_err(|err| refused(err.into()))?;
    // SAFETY: `name` ends in NUL.
    let copy = unsafe { libc::strdup(name.as_ptr()) };
    if copy.is_null() {
        return Err(refused(io::Error::last_os_error()));
    }
    Ok(copy)
}
