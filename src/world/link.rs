//! What carries the messages: sockets, or MPI.
//!
//! Owns bytes on their way. Knows nothing of what they mean.

use std::{
    io::{self, Read, Write},
    rc::Rc,
    time::{Duration, Instant},
};

use socket2::Socket;

use super::mpi::Network;
use crate::ffi::{
    mpi::{MessageError, Outgoing},
    simulation,
};

/// Longest message: far above the samples of one batch, far below what a wild length would ask.
const MESSAGE_BYTES_MAX: usize = 1 << 28;

/// A message begins with its length.
const LENGTH_BYTES: usize = size_of::<u64>();

/// This rank's connections: rank 0's to each other one, another's to rank 0. Named by their place.
#[derive(Debug)]
pub(super) enum Links {
    Sockets(Vec<Line>),
    Mpi {
        network: Rc<Network>,
        /// The rank at the other end, and the tag of this connection's messages.
        peers: Vec<(u32, u16)>,
    },
}

/// One end of a connection, within a machine or between machines.
#[derive(Debug)]
pub(super) struct Line {
    stream: Socket,
    /// What has arrived of the next message.
    arrived: Vec<u8>,
}

/// Why a connection does not do its work.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The rank at the other end has ended.
    Gone,
    /// A message did not come through.
    Message(MessageError),
}

impl From<MessageError> for LinkError {
    fn from(err: MessageError) -> Self {
        Self::Message(err)
    }
}

impl Links {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Sockets(streams) => streams.len(),
            Self::Mpi { peers, .. } => peers.len(),
        }
    }

    /// Does without a link; those behind it move up.
    pub(super) fn remove(&mut self, link: usize) {
        match self {
            Self::Sockets(streams) => drop(streams.remove(link)),
            Self::Mpi { peers, .. } => drop(peers.remove(link)),
        }
    }

    /// Sends each message over its link; over MPI side by side.
    pub(super) fn send(
        &mut self,
        messages: &[(usize, Rc<[u8]>)],
        due: Instant,
    ) -> Result<(), (usize, LinkError)> {
        for (link, bytes) in messages {
            if bytes.len() > MESSAGE_BYTES_MAX {
                return Err((*link, MessageError::TooLong(bytes.len() as u64).into()));
            }
        }
        simulation::waiting(|| match self {
            Self::Sockets(streams) => messages.iter().try_for_each(|(link, bytes)| {
                streams[*link].send(bytes, due).map_err(|err| (*link, err))
            }),
            Self::Mpi { network, peers } => {
                let outgoing = |(link, bytes): &(usize, Rc<[u8]>)| {
                    let (to, tag) = peers[*link];
                    Outgoing { to, tag, bytes: Rc::clone(bytes) }
                };
                let outgoing: Vec<Outgoing> = messages.iter().map(outgoing).collect();
                network.mpi.send(&outgoing, due).map_err(|(rank, err)| {
                    let link = peers.iter().position(|&(peer, _)| peer == rank);
                    (link.unwrap_or_default(), err.into())
                })
            }
        })
    }

    /// The next message of a link.
    pub(super) fn receive(&mut self, link: usize, due: Instant) -> Result<Vec<u8>, LinkError> {
        simulation::waiting(|| match self {
            Self::Sockets(streams) => streams[link].read(due),
            Self::Mpi { network, peers } => {
                let (from, tag) = peers[link];
                Ok(network.mpi.receive(from, tag, MESSAGE_BYTES_MAX, due)?)
            }
        })
    }
}

impl Line {
    pub(super) fn new(stream: impl Into<Socket>) -> Self {
        Self { stream: stream.into(), arrived: Vec::new() }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.stream.try_clone().map(Self::new)
    }

    /// Sends a message: its length and its bytes.
    pub(super) fn send(&mut self, bytes: &[u8], due: Instant) -> Result<(), LinkError> {
        let mut frame = (bytes.len() as u64).to_le_bytes().to_vec();
        frame.extend(bytes);
        self.write(&frame, due)
    }

    /// Writes bytes that are no message.
    pub(super) fn write(&mut self, bytes: &[u8], due: Instant) -> Result<(), LinkError> {
        let mut written = 0;
        while written < bytes.len() {
            let left = time_left(due)?;
            let step = self
                .stream
                .set_write_timeout(Some(left))
                .and_then(|()| self.stream.write(&bytes[written..]));
            written += progress(step)?;
        }
        Ok(())
    }

    /// Reads `count` bytes that are no message.
    pub(super) fn read_exactly(
        &mut self,
        count: usize,
        due: Instant,
    ) -> Result<Vec<u8>, LinkError> {
        self.read_up_to(count, due)?;
        Ok(self.arrived.drain(..).collect())
    }

    /// Reads a message.
    pub(super) fn read(&mut self, due: Instant) -> Result<Vec<u8>, LinkError> {
        self.read_up_to(LENGTH_BYTES, due)?;
        let (length, _) = self.arrived.split_at(LENGTH_BYTES);
        let claimed = <[u8; LENGTH_BYTES]>::try_from(length).map_or(u64::MAX, u64::from_le_bytes);
        let length = usize::try_from(claimed).ok().filter(|&length| length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or(MessageError::TooLong(claimed))?;
        self.read_up_to(LENGTH_BYTES + length, due)?;
        Ok(self.arrived.drain(..).skip(LENGTH_BYTES).collect())
    }

    /// Reads until `wanted` bytes of the message have arrived; what has stays for the next call.
    fn read_up_to(&mut self, wanted: usize, due: Instant) -> Result<(), LinkError> {
        let mut arrived = self.arrived.len();
        self.arrived.resize(wanted.max(arrived), 0);
        let mut read_all = || {
            while arrived < wanted {
                let left = time_left(due)?;
                let step = self
                    .stream
                    .set_read_timeout(Some(left))
                    .and_then(|()| self.stream.read(&mut self.arrived[arrived..wanted]));
                arrived += progress(step)?;
            }
            Ok(())
        };
        let all = read_all();
        self.arrived.truncate(arrived);
        all
    }
}

fn time_left(due: Instant) -> Result<Duration, LinkError> {
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(MessageError::Late.into()) } else { Ok(left) }
}

/// What one read or write achieved; a time-out is seen by the next look at the clock.
fn progress(step: io::Result<usize>) -> Result<usize, LinkError> {
    match step {
        Ok(0) => Err(LinkError::Gone),
        Ok(count) => Ok(count),
        Err(err) => match err.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(0)
            }
            _ => Err(LinkError::Gone),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_wild_length_is_refused_before_memory_is_taken() {
        let (near, far) = UnixStream::pair().unwrap();
        (&near).write_all(&u64::from(u32::MAX).to_le_bytes()).unwrap();
        let due = Instant::now() + Duration::from_secs(1);
        let err = Links::Sockets(vec![Line::new(far)]).receive(0, due).unwrap_err();
        assert!(matches!(err, LinkError::Message(MessageError::TooLong(4_294_967_295))), "{err:?}");
    }

    #[test]
    fn a_message_above_the_limit_is_not_sent() {
        let (near, far) = UnixStream::pair().unwrap();
        let long: Rc<[u8]> = vec![0; MESSAGE_BYTES_MAX + 1].into();
        let due = Instant::now() + Duration::from_secs(1);
        let (link, err) =
            Links::Sockets(vec![Line::new(near)]).send(&[(0, long)], due).unwrap_err();
        assert_eq!(link, 0);
        assert!(matches!(err, LinkError::Message(MessageError::TooLong(268_435_457))), "{err:?}");
        drop(far);
    }
}
