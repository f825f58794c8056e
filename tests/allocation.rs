//! Nothing is allocated in the timed region: an allocator that counts, and the real transport.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use g2g::{
    machine,
    plan::{self, Pattern, Request, TransportKind},
    transport::{self, Span},
    units::Bytes,
    world::{Local, World},
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came; counting touches a thread-local
// cell that needs no allocation.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(address, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(ALLOCATIONS.get(), before + 1);
}

#[test]
fn running_a_transfer_allocates_nothing() {
    let topology = machine::topology().unwrap();
    let request = Request {
        patterns: vec![Pattern::OneWay, Pattern::BothWays],
        sizes: Some(vec![Bytes::new(64), Bytes::kib(64), Bytes::mib(3)]),
        ranks: Some(2),
        ..Request::of(&[TransportKind::Shm])
    };
    let cases = plan::cases(&request, &topology).unwrap();
    assert_eq!(cases.len() % 6, 0);
    let worlds = Local::threads(2, Duration::from_secs(20)).unwrap();
    std::thread::scope(|scope| {
        for world in worlds {
            let (cases, topology) = (&cases, &topology);
            scope.spawn(move || {
                let mut world = World::local(world).unwrap();
                for case in cases {
                    let shm = transport::open(TransportKind::Shm, topology).unwrap();
                    let mut transfer = shm.prepare(case, &mut world).unwrap();
                    let mut spans = vec![Span::default(); 50];
                    let before = ALLOCATIONS.get();
                    transfer.run(3, &mut spans).unwrap();
                    assert_eq!(ALLOCATIONS.get(), before, "{case:?}");
                    world.barrier().unwrap();
                }
            });
        }
    });
}
