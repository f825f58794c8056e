//! Which flows of RDMA go at once, between four ranks of one host.

use std::collections::BTreeMap;

use crate::common::verified_rdma;

/// Cases of each pattern among four ranks, and the flows of each.
const PATTERNS: [(&str, usize, &str); 8] = [
    // Within a host the way back is the same way.
    ("one-way", 6, "1"),
    ("both-ways", 6, "2"),
    ("pairs", 1, "2"),
    ("all-to-one", 4, "3"),
    ("neighbours", 1, "4"),
    ("bisection", 1, "4"),
    ("one-to-all", 4, "3"),
    ("all-pairs", 1, "12"),
];

/// Measures these of the patterns.
fn measure(provider: &str, operation: &str, patterns: &[(&str, usize, &str)]) {
    let names: Vec<&str> = patterns.iter().map(|(name, ..)| *name).collect();
    let rows = verified_rdma(&format!(
        "--ranks 4 --provider {provider} --operation {operation} --sizes 4K --pattern {}",
        names.join(",")
    ));
    let mut found = BTreeMap::new();
    for row in 0..rows.len() {
        assert!(rows.cell(row, "provider").starts_with(provider));
        let total = rows.number(row, "bandwidth_gb_s_total");
        let (each, flows) = (rows.number(row, "bandwidth_gb_s"), rows.number(row, "flows"));
        assert!((total - each * flows).abs() <= 1e-9 * total, "row {row}: {total} of {flows}");
        *found.entry((rows.cell(row, "pattern"), rows.cell(row, "flows"))).or_insert(0) += 1;
    }
    let expected = patterns.iter().map(|&(name, cases, flows)| ((name, flows), cases));
    assert_eq!(found, expected.collect(), "{provider} {operation}");
}

#[test]
fn every_pattern_has_its_flows_over_tcp() {
    measure("tcp", "read", &PATTERNS);
}

#[test]
fn patterns_of_many_flows_have_them_through_shared_memory() {
    // The locks of libfabric's shm spin. With more ranks than CPUs, one that loses its CPU with the
    // lock of a rank to which all send holds up all of them: a row takes half a minute.
    measure("shm", "send", &PATTERNS[4..]);
}
