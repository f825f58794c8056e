//! RDMA between memory of GPUs, through host memory: two ranks, which are threads here, over the
//! simulated machine's interfaces, or beside real GPUs over libfabric's tcp.

use std::sync::{Mutex, MutexGuard, PoisonError};

use g2g::{
    machine,
    measure::{self, Experiment, Outcome, Witness},
    plan::{
        self, Effort, FabricRequest, Level, Operation, Pattern, Rank, Request, TransportKind,
        topology::Host,
    },
    transport::{self, Completion, GpuPath, Registration},
    world::{Local, World},
};

use super::*;

on_both_machines! {
    one GPU: [
        staged_data_arrives_by_every_operation
        staged_data_comes_from_all_ranks_at_once
    ]
    two GPUs: []
}

/// More than one chunk, and no whole number of them.
const SIZE: Bytes = Bytes::new((3 << 19) + 4099);

pub(super) const QUICK: Effort =
    Effort { time_limit: Duration::from_millis(50), samples: Some(3), ..Level::Normal.effort() };

pub(super) struct Nobody;

impl Witness for Nobody {
    fn look_before(&mut self) {}

    fn look_after(&mut self) {}
}

/// Ranks on the simulated machine have it for themselves: its time waits for all that are there.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What rank 0 gets of each case between `ranks` ranks of this machine.
fn outcomes(ranks: u32, request: &Request) -> Vec<(plan::Case, Outcome)> {
    let _alone = alone();
    let mut topology = machine::topology().unwrap();
    topology.nics = machine::offered_nics(None);
    let own = (0..ranks).map(Rank).collect();
    let host =
        Host { name: "here".to_owned(), ranks: own, topology: topology.clone(), ..Host::default() };
    let cases = plan::cases_across_hosts(request, &[host]).unwrap();
    let run = |local: Local| {
        let mut world = World::local(local).unwrap();
        let transport = transport::open(TransportKind::Rdma, &topology).unwrap();
        let measure = |case: &plan::Case| {
            let own =
                if world.is_root() { case.clone() } else { case.parts()[&world.rank()].clone() };
            let experiment =
                Experiment { transport: transport.as_ref(), case: &own, effort: QUICK, seed: 7 };
            let outcome = measure::measure(&mut world, &experiment, &mut Nobody).unwrap();
            outcome.map(|outcome| (case.clone(), outcome))
        };
        cases.iter().filter_map(measure).collect::<Vec<_>>()
    };
    let worlds = Local::threads(ranks, PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|local| scope.spawn(|| run(local))).collect();
        let mut outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
        let first = outcomes.next().unwrap();
        assert!(outcomes.all(|others| others.is_empty()));
        first
    })
}

/// The provider of these tests: the simulated machine's, or one that every machine has.
pub(super) fn provider() -> String {
    if simulation::library().is_some() { "efa" } else { "tcp" }.to_owned()
}

fn request(pattern: Pattern, sizes: &[Bytes]) -> Request {
    let (providers, memory) = (vec![provider()], vec![plan::Memory::Staged]);
    Request {
        patterns: vec![pattern],
        sizes: Some(sizes.to_vec()),
        fabric: FabricRequest { providers, memory, ..FabricRequest::default() },
        ..Request::of(&[TransportKind::Rdma])
    }
}

fn staged_data_arrives_by_every_operation(_: &[Context]) {
    let sizes = [Bytes::new(8), Bytes::new(70_001), SIZE];
    let outcomes = outcomes(2, &request(Pattern::OneWay, &sizes));
    assert_eq!(outcomes.len(), 9);
    for (case, outcome) in outcomes {
        let Outcome::Measured(measured) = outcome else { panic!("{case:?}: {outcome:?}") };
        assert!(measured.bandwidth.unwrap().gb_s.estimate > 0.0);
        let staging = measured.staging.unwrap();
        assert!(staging.slots > 1 && staging.slot <= Bytes::kib(512), "{staging:?}");
        let network = measured.network.unwrap();
        assert_eq!(network.gpu_path, Some(GpuPath::Staged));
        assert_eq!(network.source_registration, Registration::Host);
        // Operations end whole, and the last chunk of each is what is left.
        let (moved, operations) = (network.moved.get(), measured.operations);
        assert!(moved.is_multiple_of(case.size.get()), "{case:?}: {moved}");
        assert!(moved >= case.size.times(operations).get(), "{case:?}: {moved}");
        let ended = match case.operation {
            Operation::Read => Completion::Arrival,
            _ => Completion::Confirmed,
        };
        assert_eq!(network.latency_completion, ended, "{case:?}");
    }
}

fn staged_data_comes_from_all_ranks_at_once(_: &[Context]) {
    for pattern in [Pattern::AllPairs, Pattern::OneToAll] {
        // Few slots, so that the ends wait for each other.
        let mut request = request(pattern, &[Bytes::new(300_003)]);
        request.slot = Some(Bytes::kib(64));
        request.fabric.window = Some(3);
        for (case, outcome) in outcomes(3, &request) {
            let Outcome::Measured(measured) = outcome else { panic!("{case:?}: {outcome:?}") };
            let staging = measured.staging.unwrap();
            assert_eq!((staging.slots, staging.slot), (3, Bytes::kib(64)));
        }
    }
}
