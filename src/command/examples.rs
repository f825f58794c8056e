//! Command lines that show what a command is for, at the top of its `--help`.

use clap::Command;

/// The examples of each command.
const EXAMPLES: [(&str, [&str; 3]); 15] = [
    ("run", ["g2g run", "g2g run --effort quick --details", "g2g run --simulate p5.48xlarge"]),
    ("local", ["g2g local", "g2g local --gpus 0 --sizes 1M,1G", "g2g local --pattern both-ways"]),
    (
        "p2p",
        [
            "g2g p2p --gpus 0,1 --sizes 4K..1G",
            "g2g p2p --ranks 8 --pattern bisection,one-to-all",
            "g2g p2p --engine ce --fail-below=90%",
        ],
    ),
    ("shm", ["g2g shm --sizes 4K..64M", "g2g shm --ranks 4 --pattern pairs", "g2g shm --numa 0:1"]),
    (
        "nccl",
        [
            "g2g nccl --operation all_reduce -b 8 -e 8G -f 2 -g 8",
            "g2g nccl --data-type all --reduction all --sizes 1M",
            "mpirun -np 16 g2g nccl --nccl-env NCCL_ALGO=Ring",
        ],
    ),
    (
        "rdma",
        [
            "mpirun -np 2 -H node1,node2 g2g rdma",
            "g2g rdma --provider tcp --memory host",
            "g2g rdma --operation write --sizes 8 --endpoints 4",
        ],
    ),
    (
        "check",
        [
            "g2g check",
            "g2g check --for 1h --baseline results/good",
            "mpirun -np 4 --map-by node g2g check --exclude unfit.txt",
        ],
    ),
    (
        "topo",
        ["g2g topo", "g2g topo --format svg > machine.svg", "g2g topo --simulate p5.48xlarge"],
    ),
    ("doctor", ["g2g doctor", "g2g doctor --verbose", "mpirun -np 16 g2g doctor"]),
    (
        "sweep",
        [
            "g2g sweep scripts/plans/algo-proto.toml",
            "g2g sweep scripts/plans/algo-proto.toml --dry-run",
            "g2g sweep --resume results/night",
        ],
    ),
    (
        "report",
        [
            "g2g report results/night",
            "g2g report before after -o both.html",
            "g2g report results/*",
        ],
    ),
    (
        "compare",
        [
            "g2g compare before after",
            "g2g compare before after --fail-on 5%",
            "g2g compare run all_reduce.txt --across nccl",
        ],
    ),
    (
        "step",
        [
            "g2g step --model llama-3-8b --ranks 4 --micro-batches 4",
            "g2g step --model llama-3-70b --ranks 64 --tensor-parallel 8 --sharding zero1",
            "g2g step --parameters 8.03e9 --layers 32 --sharding ddp results/night",
        ],
    ),
    (
        "explain",
        [
            "g2g explain nccl.*.log",
            "g2g explain nccl.log --format json",
            "mpirun -np 8 train 2>&1 | g2g explain -",
        ],
    ),
    ("catalogue", ["g2g catalogue", "g2g catalogue p5.48xlarge", "g2g catalogue --format json"]),
];

/// `command` with examples before the long help of its subcommands.
pub(super) fn shown(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let of_command = EXAMPLES.iter().find(|(name, _)| *name == command.get_name());
        match of_command {
            Some((_, lines)) => {
                let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
                command.before_long_help(format!("Examples:\n{}", lines.join("\n")))
            }
            None => command,
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::command::{Answer, Cli};

    #[test]
    fn every_command_has_examples_that_it_takes() {
        let command = Cli::command();
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let (_, lines) = EXAMPLES.iter().find(|(of, _)| *of == name).unwrap();
            for line in lines {
                let words = line[line.find("g2g").unwrap()..].split(" > ").next().unwrap();
                let words = words.split_whitespace().map(Into::into);
                let read = Cli::read(words);
                assert!(read.is_ok(), "{line}: {:?}", read.err());
            }
            let help = Cli::read(["g2g", name, "--help"].map(Into::into));
            let Err(Answer::Help(help)) = help else { panic!("{name}") };
            assert!(help.starts_with(&format!("Examples:\n  {}\n", lines[0])), "{help}");
        }
    }
}
