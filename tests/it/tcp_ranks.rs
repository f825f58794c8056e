//! Ranks that meet over TCP, by the variables of torchrun: on hosts of namespaces, and what goes
//! wrong.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Rows, SOON, eventually, g2g, lab::Lab, program, text};

pub(super) const SECRET: &str = "G2G_SECRET=7c5a0e0c9d1f4b52a6d3";

/// The variables of a rank.
pub(super) fn variables(rank: usize, size: usize, address: &str, port: u16) -> Vec<String> {
    vec![
        format!("RANK={rank}"),
        format!("WORLD_SIZE={size}"),
        format!("MASTER_ADDR={address}"),
        format!("MASTER_PORT={port}"),
    ]
}

/// How a process ended within the limit, and what it said.
pub(super) fn end(child: Child, limit: Duration) -> (Option<i32>, String) {
    let mut child = child;
    let is_over = eventually(limit, || child.try_wait().unwrap().is_some());
    if !is_over {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(is_over, "it goes on: {said}");
    (output.status.code(), said)
}

#[test]
fn ranks_of_two_hosts_measure_without_mpi() {
    let Some(lab) = Lab::up(2, "") else { return };
    for per_host in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let line = format!(
            "rdma --provider tcp --nic eth0 --memory host --operation write,read,send --sizes 64K \
             --samples 5 --time-limit 20ms --quiet --no-report --output {}",
            output.display()
        );
        let size = 2 * per_host;
        let start = |rank: usize| {
            let mut words = variables(rank, size, "10.78.0.1", 29_500);
            words.push(SECRET.to_owned());
            words.push(program().to_owned());
            words.extend(line.split_whitespace().map(str::to_owned));
            lab.start_on(rank / per_host, &words)
        };
        let children: Vec<Child> = (0..size).map(start).collect();
        for child in children {
            let (code, said) = end(child, SOON);
            assert_eq!(code, Some(0), "{said}");
        }
        assert_eq!(lab.processes(), "");
        let rows = Rows::read(&output);
        let mut hosts: Vec<&str> = Vec::new();
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "status"), "ok", "{}", rows.cell(row, "reason"));
            hosts.push(rows.cell(row, "source_host"));
        }
        hosts.sort_unstable();
        hosts.dedup();
        assert_eq!(hosts, [lab.host(0), lab.host(1)]);
    }
}

/// A rank on this machine with the variables.
pub(super) fn rank(variables: &[String], line: &str) -> Child {
    let mut command = g2g();
    command.args(line.split_whitespace()).stdin(Stdio::null());
    for variable in variables {
        let (name, value) = variable.split_once('=').unwrap();
        command.env(name, value);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn what_keeps_ranks_apart_is_told_in_a_sentence_within_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!("shm --sizes 64 --deadline 3s --no-report --output {}", output.display());
    let taken = TcpListener::bind("[::]:0").unwrap();
    let in_use = taken.local_addr().unwrap().port();
    let free = || TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let with = |number: usize, port: u16, secret: &str| {
        let mut variables = variables(number, 2, "localhost", port);
        variables.push(secret.to_owned());
        rank(&variables, &line)
    };
    let port = free();
    let other = "G2G_SECRET=another-one-of-such-length";
    for (children, sentences) in [
        (vec![with(0, free(), "NOTHING=")], vec!["which meet over TCP and have no secret: give"]),
        (vec![with(0, in_use, SECRET)], vec!["rank 0 cannot listen on port"]),
        (vec![with(0, free(), SECRET)], vec!["rank 1 did not come to localhost:"]),
        (vec![with(1, free(), SECRET)], vec!["cannot join rank 0 at localhost:"]),
        (
            vec![with(0, port, SECRET), with(1, port, other)],
            vec!["it has another G2G_SECRET", "it has another G2G_SECRET: give all ranks the same"],
        ),
    ] {
        let began = Instant::now();
        for (child, sentence) in children.into_iter().zip(sentences) {
            let (code, said) = end(child, SOON);
            assert_eq!(code, Some(2), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.starts_with("error: rank ") && said.contains(sentence), "{said}");
        }
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert!(!output.exists());
    }
}

#[test]
fn strangers_at_the_port_do_no_harm_to_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "shm --numa 0:0 --pattern one-way --sizes 64K --samples 5 --time-limit 20ms --no-report \
         --output {}",
        output.display()
    );
    let port = TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let with = |number: usize| {
        let mut variables = variables(number, 2, "localhost", port);
        variables.push(SECRET.to_owned());
        rank(&variables, &line)
    };
    let first = with(0);
    let mut strangers = Vec::new();
    let listens = eventually(SOON, || {
        TcpStream::connect(("localhost", port)).map(|stream| strangers.push(stream)).is_ok()
    });
    assert!(listens, "rank 0 does not listen");
    for number in 0..50_u8 {
        let mut stranger = TcpStream::connect(("localhost", port)).unwrap();
        stranger.write_all(&[number; 300][..300 * usize::from(number % 2)]).unwrap();
        strangers.push(stranger);
    }
    let second = with(1);
    for child in [first, second] {
        let (code, said) = end(child, SOON);
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(Rows::read(&output).cell(0, "status"), "ok");
    // Nothing goes on to listen.
    let is_free = || TcpStream::connect(("localhost", port)).is_err();
    assert!(eventually(SOON, is_free));
    drop(strangers);
}
