//! g2g with a transport that does its work wrongly: proof that the pipeline gives no number to
//! wrong data, whatever the transport.
//!
//! `FAULT` names the fault; cases of [`FAULTY_SIZE`] suffer from it, all others go through the
//! real transport.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{process::ExitCode, sync::atomic::Ordering};

use g2g::{
    ffi::{
        clock,
        host::HostBuffer,
        shm::{Segment, Store},
    },
    plan::{Case, TransportKind, topology::Topology},
    transport::{self, Clock, Error, Mismatch, Span, Support, Transfer, Transport, pattern},
    units::Bytes,
    world::World,
};

/// 6 MiB and a tail of 5 bytes, which is no whole word of the pattern.
const FAULTY_SIZE: u64 = (6 << 20) + 5;

const MIB: usize = 1 << 20;

/// Where the data begins in the segment; the words before it are counts of operations.
const DATA_AT: usize = 4096;

fn main() -> ExitCode {
    g2g::command::main(open)
}

fn open(kind: TransportKind, topology: &Topology) -> Result<Box<dyn Transport>, String> {
    let real = transport::open(kind, topology)?;
    let fault = std::env::var("FAULT").expect("FAULT names the fault");
    Ok(Box::new(Faulty { real, fault }))
}

struct Faulty {
    real: Box<dyn Transport>,
    fault: String,
}

impl Transport for Faulty {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        self.real.support(case, world)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        if case.size.get() != FAULTY_SIZE {
            return self.real.prepare(case, world);
        }
        let own = world
            .is_root()
            .then(|| Segment::create(Bytes::new(case.size.get() + DATA_AT as u64)).unwrap());
        let address = world.broadcast(own.as_ref().map(Segment::address))?;
        let segment = own.unwrap_or_else(|| Segment::open(address).unwrap());
        world.barrier()?;
        Ok(Box::new(FaultyTransfer {
            is_source: world.is_root(),
            buffer: HostBuffer::new(case.size).unwrap(),
            segment,
            fault: self.fault.clone(),
            done: 0,
            is_timed: false,
            late: HostBuffer::new(case.size).unwrap(),
        }))
    }
}

/// One transfer at a time through a segment as large as the data.
struct FaultyTransfer {
    is_source: bool,
    buffer: HostBuffer,
    segment: Segment,
    fault: String,
    done: u64,
    is_timed: bool,
    /// The data of the transfer before.
    late: HostBuffer,
}

impl FaultyTransfer {
    fn wait_for(&self, word: usize, count: u64) {
        while self.segment.word(word).load(Ordering::Acquire) < count {
            std::thread::yield_now();
        }
    }

    fn copy_out(&mut self) {
        if self.fault == "never-written" && self.is_timed {
            return;
        }
        self.segment.read(DATA_AT, &mut self.buffer, Store::Cached);
        let (length, buffer) = (self.buffer.len(), &mut self.buffer);
        match self.fault.as_str() {
            "first-byte" => buffer[0] ^= 0x40,
            "middle-byte" => buffer[length / 2] ^= 0x40,
            "last-byte" => buffer[length - 1] ^= 0x40,
            "tail-byte" => buffer[length - 3] ^= 0x40,
            "shifted-block" => buffer.copy_within(0..2 * MIB, 2 * MIB),
            "swapped-blocks" => buffer[MIB..3 * MIB].rotate_left(MIB),
            "never-written" => {}
            // What arrives is what was sent the time before, as from a slot read too early.
            "one-late" => buffer.swap_with_slice(&mut self.late),
            other => panic!("no fault is called {other}"),
        }
    }
}

impl Transfer for FaultyTransfer {
    fn clock(&self) -> Clock {
        Clock::of_host(clock::resolution())
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.is_timed = true;
        match self.is_source {
            true => pattern::fill(&mut self.buffer, seed),
            false => pattern::poison(&mut self.buffer, seed),
        }
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        let (filled, emptied) = (0, 128);
        for span in spans {
            span.start_ns = self.is_source.then(|| clock::now().ns());
            for _ in 0..operations {
                if self.is_source {
                    self.wait_for(emptied, self.done);
                    self.segment.write(DATA_AT, &self.buffer, Store::Cached);
                } else {
                    self.wait_for(filled, self.done + 1);
                    self.copy_out();
                }
                self.done += 1;
                let mine = if self.is_source { filled } else { emptied };
                self.segment.word(mine).store(self.done, Ordering::Release);
            }
            self.wait_for(emptied, self.done);
            span.end_ns = (!self.is_source).then(|| clock::now().ns());
        }
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        Ok(if self.is_source { None } else { pattern::compare(&self.buffer, seed, 1) })
    }
}
