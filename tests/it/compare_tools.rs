//! `g2g compare` of our results with those of other tools.

use serde_json::Value;

use crate::{
    common::{Rows, simulation::assert_near, text},
    compare::{PAIRS, Place, machine, verdict},
};

#[test]
fn results_of_other_tools_are_held_against_ours() {
    let place = Place::new();
    let fixture =
        |name: &str| format!("{}/tests/fixtures/import/{name}", env!("CARGO_MANIFEST_DIR"));
    let value = |cases: &[Value], name: &str, size: u64, key: &str| {
        let is =
            |case: &&Value| case["case"].as_str().unwrap() == name && case["size_bytes"] == size;
        cases.iter().find(is).unwrap_or_else(|| panic!("{name}: {cases:?}"))[key].as_f64()
    };

    place.run("nccl", "nccl --simulate p5.48xlarge --operation all_reduce --place out-of-place,in-place --sizes 8,1M --samples 6 --time-limit 1ms --quiet");
    let file = fixture("nccl-tests-2.19.6.txt");
    let (cases, _) = place.judged(&format!("nccl {file} --across simulated,nccl"));
    let of_ours = Rows::read(&place.path("nccl"));
    for (name, in_place, size, algbw) in [
        ("nccl all_reduce float sum 8 ranks", "false", 1 << 20, 25.27),
        ("nccl all_reduce float sum in place 8 ranks", "true", 1 << 20, 25.62),
        ("nccl all_reduce float sum 8 ranks", "false", 8, 8.0 / 22.31e3),
    ] {
        let found = value(&cases, name, size, "value_b").unwrap();
        assert_near(found, algbw, 0.001, "the algorithm bandwidth of nccl-tests");
        let is_row = |row: &usize| {
            of_ours.cell(*row, "in_place") == in_place
                && of_ours.number(*row, "size_bytes") == size as f64
        };
        let row = (0..of_ours.len()).find(is_row).unwrap();
        let own = value(&cases, name, size, "value_a").unwrap();
        assert_near(own, of_ours.number(row, "bandwidth_gb_s"), 1e-9, "and ours");
    }
    let result = place.compare(&format!("nccl {file} --across simulated,nccl"));
    let (printed, said) = (text(&result.stdout), text(&result.stderr));
    assert!(said.contains("nccl-tests found wrong data: `1 FAILED`"), "{said}");
    for said in [
        "Numbers without an interval, as other tools' are, are the same up to 5.0 % (--margin)",
        "slower (no interval)",
    ] {
        assert!(printed.contains(said), "{printed}");
    }
    // What no row of theirs stands beside takes no line of the table.
    assert!(!printed.contains("not comparable"), "{printed}");
    let judged = |flags: &str| {
        let line = format!("nccl {file} --across simulated,nccl --fail-on 5% {flags}");
        place.compare(&line).status.code()
    };
    assert_eq!((judged("--margin 5%"), judged("--margin 100%")), (Some(1), Some(0)));
    let (cases, _) = place.judged(&format!("nccl {file}"));
    assert!(cases.iter().all(|case| verdict(case) == "not comparable"), "{cases:?}");

    let machine = place.file("four.toml", &machine(""));
    place.run("p2p", &format!("{PAIRS} --samples 6 --simulate {machine}"));
    let file = fixture("nvbandwidth-0.8.json");
    let (cases, _) = place.judged(&format!("p2p {file} --across simulated"));
    let matched: Vec<&Value> = cases.iter().filter(|case| !case["change"].is_null()).collect();
    assert_eq!(matched.len(), 24, "both matrices of 4 GPUs by their copy engines");
    // Row 1, column 2 of what reads, where GPU 1 pulls; row 1, column 2 of what writes, where it
    // pushes.
    for (name, target, gb_s) in [
        ("p2p copy read ce GPU 2 of", "-> GPU 1", 402.0),
        ("p2p copy write ce GPU 1 of", "-> GPU 2", 412.0),
    ] {
        let is = |case: &&&Value| {
            let told = case["case"].as_str().unwrap();
            told.starts_with(name) && told.contains(target)
        };
        assert_eq!(matched.iter().find(is).unwrap()["value_b"], gb_s, "{name}");
    }
    let said = text(&place.compare(&format!("p2p {file} --across simulated")).stderr);
    assert!(
        said.contains("1 result of nvbandwidth is left out: `all_to_host_memcpy_ce`"),
        "{said}"
    );
}
