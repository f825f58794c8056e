//! Point-to-point messages of bytes, as a library with handles of one type takes them.
//!
//! A message is two: its length, and its bytes. Each goes by `MPI_Isend` or `MPI_Irecv` and is
//! asked for with `MPI_Test`, so that every wait has an end. What MPI may still read or write then
//! stays where it is: a late message is leaked, a late receive is taken up by the next.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    ffi::{c_char, c_int, c_void},
    io,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use super::{Constants, calls::Calls};
use crate::ffi::{CallError, Cause, text_in};

/// Tests in a row before the CPU is offered to others: the other rank may just be answering.
const SPINS: u32 = 200;

/// As long as this a wait gives the CPU away between tests, and then it sleeps.
const YIELD_FOR: Duration = Duration::from_micros(200);

/// The longest sleep between tests. A sleep is a sixteenth of the wait so far, so that it adds
/// little to any wait, and ranks that wait long leave the CPUs to those at work.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Room for MPI's sentence about an error: `MPI_MAX_ERROR_STRING` is 256 or 512.
const TEXT_LENGTH: usize = 1024;

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The rank that it goes to.
    pub to: u32,
    /// Which conversation with that rank it belongs to.
    pub tag: u16,
    /// What it says.
    pub bytes: Rc<[u8]>,
}

/// Why a message did not come through.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// It was not there in time.
    #[error("not done in time")]
    Late,
    /// It is longer than is allowed.
    #[error("a message of {0} bytes")]
    TooLong(u64),
    /// MPI refused.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What is the same for every library.
pub(super) trait Session: std::fmt::Debug {
    fn initialize(&self) -> Result<(), CallError>;
    fn rank(&self) -> Result<u32, CallError>;
    fn size(&self) -> Result<u32, CallError>;
    fn send(&self, messages: &[Outgoing], due: Instant) -> Result<(), (u32, MessageError)>;
    fn receive(
        &self,
        from: u32,
        tag: u16,
        bytes_max: usize,
        due: Instant,
    ) -> Result<Vec<u8>, MessageError>;
    fn finalize(&self) -> Result<(), CallError>;
    fn abort(&self, code: c_int);
}

/// The messages of a library whose handles are `H`.
#[derive(Debug)]
pub(super) struct Messages<H> {
    calls: Calls<H>,
    constants: Constants<H>,
    /// Receives that were not done in time, by sender and tag.
    incoming: RefCell<HashMap<(u32, u16), Incoming<H>>>,
}

/// A receive under way.
#[derive(Debug)]
enum Incoming<H> {
    Length(Receiving<H>),
    Bytes(Receiving<H>),
}

/// Memory that MPI writes until the request is complete; leaked if it is dropped before.
#[derive(Debug)]
struct Receiving<H> {
    request: H,
    memory: *mut [u8],
}

/// Memory that MPI reads until the request is complete; leaked if it is dropped before.
#[derive(Debug)]
struct Sending<H> {
    to: u32,
    request: H,
    memory: *const [u8],
}

/// An `MPI_Status` of any library: the largest known, that of the standard ABI, has 32 bytes.
type Status = [u64; 8];

impl<H: Copy + std::fmt::Debug> Messages<H> {
    pub(super) fn new(calls: Calls<H>, constants: Constants<H>) -> Self {
        Self { calls, constants, incoming: RefCell::default() }
    }

    fn check(&self, call: &'static str, object: &str, code: c_int) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0_u8; TEXT_LENGTH];
        let mut length = 0;
        // SAFETY: `text` has more room than any library's longest sentence, and both are live
        // locals that the call only writes.
        unsafe {
            (self.calls.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length);
        }
        let text = text_in(&text);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let cause = Cause::Library {
            code: code.unsigned_abs(),
            name: "MPI error".to_owned(),
            text: lines.join("; "),
        };
        Err(CallError::new(call, object, cause))
    }

    fn number(
        &self,
        name: &'static str,
        call: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    ) -> Result<u32, CallError> {
        let mut number = -1;
        // SAFETY: `number` is a live local that the call only writes.
        let code = unsafe { call(self.constants.world, &raw mut number) };
        self.check(name, "MPI_COMM_WORLD", code)?;
        Ok(u32::try_from(number).unwrap_or(0))
    }

    /// Begins to send `memory`.
    fn post_send(&self, to: u32, tag: u16, memory: Rc<[u8]>) -> Result<Sending<H>, CallError> {
        let (count, rank) = (count("MPI_Isend", memory.len())?, rank(to));
        let mut send = Sending { to, request: self.constants.byte, memory: Rc::into_raw(memory) };
        // SAFETY: `memory` is `count` bytes that live until the request is complete, since it is
        // taken back only then; `request` is a live local that the call only writes.
        let code = unsafe {
            (self.calls.isend)(
                send.memory.cast::<c_void>(),
                count,
                self.constants.byte,
                rank,
                c_int::from(tag),
                self.constants.world,
                &raw mut send.request,
            )
        };
        self.check("MPI_Isend", &format!("rank {to}"), code).map(|()| send)
    }

    /// Begins to receive `length` bytes.
    fn post_receive(&self, from: u32, tag: u16, length: usize) -> Result<Receiving<H>, CallError> {
        let count = count("MPI_Irecv", length)?;
        let memory = Box::into_raw(vec![0_u8; length].into_boxed_slice());
        let mut receive = Receiving { request: self.constants.byte, memory };
        // SAFETY: `memory` is `count` bytes that live until the request is complete and are not
        // touched before; `request` is a live local that the call only writes.
        let code = unsafe {
            (self.calls.irecv)(
                memory.cast::<c_void>(),
                count,
                self.constants.byte,
                rank(from),
                c_int::from(tag),
                self.constants.world,
                &raw mut receive.request,
            )
        };
        self.check("MPI_Irecv", &format!("rank {from}"), code).map(|()| receive)
    }

    /// Whether a request is complete, after which it is void.
    fn is_complete(&self, request: &mut H, peer: u32) -> Result<bool, CallError> {
        let mut is_complete = 0;
        let mut status: Status = [0; 8];
        // SAFETY: the request is one that MPI has given out and not yet called complete, and the
        // memory behind it is in place; the other two are live locals that the call only writes.
        let code = unsafe {
            (self.calls.test)(request, &raw mut is_complete, status.as_mut_ptr().cast::<c_void>())
        };
        self.check("MPI_Test", &format!("rank {peer}"), code)?;
        Ok(is_complete != 0)
    }

    /// What a receive brings; `None` if it is not there in time.
    fn wait(
        &self,
        receive: &mut Receiving<H>,
        from: u32,
        due: Instant,
    ) -> Result<Option<Box<[u8]>>, CallError> {
        let mut pace = Pace::new(due);
        while !self.is_complete(&mut receive.request, from)? {
            if !pace.rest() {
                return Ok(None);
            }
        }
        // SAFETY: the pointer is that of a box which was given up in `post_receive`; the request
        // is complete, so MPI is done with it, and the caller drops it now.
        Ok(Some(unsafe { Box::from_raw(receive.memory) }))
    }
}

impl<H: Copy + std::fmt::Debug> Session for Messages<H> {
    fn initialize(&self) -> Result<(), CallError> {
        let mut provided = 0;
        // SAFETY: MPI allows the program's arguments to be left out; `provided` is a live local
        // that the call only writes. The caller takes care that this is the first call.
        let code = unsafe {
            (self.calls.init_thread)(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                self.constants.thread_funneled,
                &raw mut provided,
            )
        };
        self.check("MPI_Init_thread", "", code)?;
        // SAFETY: both handles are the library's own constants.
        let code = unsafe {
            (self.calls.comm_set_errhandler)(self.constants.world, self.constants.errors_return)
        };
        self.check("MPI_Comm_set_errhandler", "MPI_ERRORS_RETURN", code)
    }

    fn rank(&self) -> Result<u32, CallError> {
        self.number("MPI_Comm_rank", self.calls.comm_rank)
    }

    fn size(&self) -> Result<u32, CallError> {
        self.number("MPI_Comm_size", self.calls.comm_size)
    }

    fn send(&self, messages: &[Outgoing], due: Instant) -> Result<(), (u32, MessageError)> {
        let mut under_way = VecDeque::new();
        for Outgoing { to, tag, bytes } in messages {
            let length: Rc<[u8]> = Rc::new((bytes.len() as u64).to_le_bytes());
            for part in [length, Rc::clone(bytes)] {
                let send = self.post_send(*to, *tag, part).map_err(|err| (*to, err.into()))?;
                under_way.push_back(send);
            }
        }
        let mut pace = Pace::new(due);
        while let Some(send) = under_way.front_mut() {
            if self.is_complete(&mut send.request, send.to).map_err(|err| (send.to, err.into()))? {
                // SAFETY: the pointer is that of an `Rc` which was given up in `post_send`; the
                // request is complete, so MPI is done with it, and it is forgotten now.
                drop(unsafe { Rc::from_raw(send.memory) });
                under_way.pop_front();
            } else if !pace.rest() {
                return Err((send.to, MessageError::Late));
            }
        }
        Ok(())
    }

    fn receive(
        &self,
        from: u32,
        tag: u16,
        bytes_max: usize,
        due: Instant,
    ) -> Result<Vec<u8>, MessageError> {
        let taken_up = self.incoming.borrow_mut().remove(&(from, tag));
        let mut incoming = match taken_up {
            Some(incoming) => incoming,
            None => Incoming::Length(self.post_receive(from, tag, size_of::<u64>())?),
        };
        loop {
            let (Incoming::Length(receive) | Incoming::Bytes(receive)) = &mut incoming;
            let Some(bytes) = self.wait(receive, from, due)? else {
                self.incoming.borrow_mut().insert((from, tag), incoming);
                return Err(MessageError::Late);
            };
            if matches!(incoming, Incoming::Bytes(_)) {
                return Ok(bytes.into_vec());
            }
            let claimed = <[u8; 8]>::try_from(&bytes[..]).map_or(u64::MAX, u64::from_le_bytes);
            let length = usize::try_from(claimed).ok().filter(|&length| length <= bytes_max);
            let length = length.ok_or(MessageError::TooLong(claimed))?;
            incoming = Incoming::Bytes(self.post_receive(from, tag, length)?);
        }
    }

    fn finalize(&self) -> Result<(), CallError> {
        // SAFETY: MPI has been initialised, and the caller takes care that this is the last call.
        let code = unsafe { (self.calls.finalize)() };
        self.check("MPI_Finalize", "", code)
    }

    fn abort(&self, code: c_int) {
        // SAFETY: the handle is the library's own constant; the call ends the process, or fails.
        unsafe { (self.calls.abort)(self.constants.world, code) };
    }
}

/// A wait with an end, which leaves the CPU to others the longer it lasts.
struct Pace {
    began: Instant,
    due: Instant,
    spins: u32,
}

impl Pace {
    fn new(due: Instant) -> Self {
        Self { began: Instant::now(), due, spins: 0 }
    }

    /// Called between two looks; whether there is time for another.
    fn rest(&mut self) -> bool {
        self.spins += 1;
        if self.spins < SPINS {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        let waited = now - self.began;
        if waited < YIELD_FOR {
            thread::yield_now();
        } else {
            thread::sleep((waited / 16).min(SLEEP_MAX));
        }
        now < self.due
    }
}

/// MPI counts in `int`.
fn count(call: &'static str, length: usize) -> Result<c_int, CallError> {
    c_int::try_from(length).map_err(|err| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, err);
        CallError::new(call, format!("{length} bytes"), source)
    })
}

/// A rank as C takes it; MPI refuses one that is too large.
fn rank(rank: u32) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}
