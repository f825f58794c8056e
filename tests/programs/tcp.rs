//! g2g with one more transport: bytes from rank to rank through a TCP connection of the kernel. It
//! takes the cases of `shm`; everything else is the product's.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
};

use g2g::{
    ffi::clock,
    plan::{Case, Rank, TransportKind, topology::Topology},
    transport::{self, Clock, Error, Mismatch, Span, Support, Transfer, Transport, pattern},
    world::{self, World},
};

fn main() -> ExitCode {
    g2g::command::main(open)
}

fn open(kind: TransportKind, topology: &Topology) -> Result<Box<dyn Transport>, String> {
    match kind {
        TransportKind::Shm => Ok(Box::new(Tcp)),
        other => transport::open(other, topology),
    }
}

struct Tcp;

impl Transport for Tcp {
    fn support(&self, case: &Case, _: &World) -> Result<Support, Error> {
        Ok(match case.flows.len() {
            1 => Support::Yes,
            _ => Support::No("tcp moves one flow at a time: give --pattern one-way".to_owned()),
        })
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        let (rank, flow) = (world.rank(), case.flows[0]);
        let failed = |err: io::Error| Error::Unavailable(format!("cannot connect by TCP: {err}"));
        let listener = (rank == flow.target.rank)
            .then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .transpose()
            .map_err(failed)?;
        let own = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(failed)?;
        let addresses = world.exchange_among(own, &case.members())?;
        let mut stream = None;
        if rank == flow.source.rank {
            let address: Option<SocketAddr> = addresses.get(&flow.target.rank).copied().flatten();
            let address = address.ok_or(Error::Disagreement("the target does not listen"))?;
            stream = Some(TcpStream::connect(address).map_err(failed)?);
        }
        // A rank that has failed is heard of here, so the target does not wait for it in vain.
        world.barrier()?;
        if let Some(listener) = listener {
            stream = Some(listener.accept().map_err(failed)?.0);
        }
        let Some(stream) = stream else { return Ok(Box::new(Idle)) };
        let deadline = world.deadline();
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(deadline)).map_err(failed)?;
        stream.set_write_timeout(Some(deadline)).map_err(failed)?;
        let sends = rank == flow.source.rank;
        let peer = if sends { flow.target.rank } else { flow.source.rank };
        let length =
            case.size.to_len().map_err(|_| Error::Disagreement("a transfer is too large"))?;
        Ok(Box::new(Connection { rank, peer, sends, stream, buffer: vec![0; length] }))
    }
}

/// The part of a rank that is one end of the flow.
struct Connection {
    rank: Rank,
    peer: Rank,
    sends: bool,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn run_span(&mut self, operations: u64, span: &mut Span) -> io::Result<()> {
        if self.sends {
            // The target is ready.
            self.stream.read_exact(&mut [0])?;
            span.start_ns = Some(clock::now().ns());
            for _ in 0..operations {
                self.stream.write_all(&self.buffer)?;
            }
        } else {
            self.stream.write_all(&[0])?;
            for _ in 0..operations {
                self.stream.read_exact(&mut self.buffer)?;
            }
            span.end_ns = Some(clock::now().ns());
        }
        Ok(())
    }

    fn error(&self, err: &io::Error) -> Error {
        match err.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Stalled {
                rank: self.peer.0,
                waiting_for: "go on with its flow",
                waited: self.stream.read_timeout().ok().flatten().unwrap_or_default(),
            },
            _ => world::Error::Gone(self.peer.0).into(),
        }
    }
}

impl Transfer for Connection {
    fn clock(&self) -> Clock {
        Clock::of_host(clock::resolution())
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        let seed = pattern::part_seed(seed, 0);
        match self.sends {
            true => pattern::fill(&mut self.buffer, seed),
            false => pattern::poison(&mut self.buffer, seed),
        }
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        spans
            .iter_mut()
            .try_for_each(|span| self.run_span(operations, span))
            .map_err(|err| self.error(&err))
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        if self.sends {
            return Ok(None);
        }
        Ok(pattern::compare(&self.buffer, pattern::part_seed(seed, 0), self.rank.0))
    }
}

/// The part of a rank that has none.
struct Idle;

impl Transfer for Idle {
    fn clock(&self) -> Clock {
        Clock::of_host(clock::resolution())
    }

    fn fill(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn run(&mut self, _: u64, _: &mut [Span]) -> Result<(), Error> {
        Ok(())
    }

    fn verify(&mut self, _: u64) -> Result<Option<Mismatch>, Error> {
        Ok(None)
    }
}
