use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    analysis::statistics::{ChangeVerdict, Quantity},
    plan::{
        Issuer, TransportKind,
        sweep::{Plan, Run},
    },
    record::{MemoryKind, Row},
    units::Bytes,
};

/// A plan with these axes, every value with every other.
fn plan_of(axes: &[(&str, &[&str])], repetitions: usize) -> Plan {
    let mut text = format!("command = \"p2p\"\nrepetitions = {repetitions}\n");
    for (name, values) in axes {
        let values: Vec<String> =
            values.iter().map(|value| format!("{{ label = \"{value}\" }}")).collect();
        text.push_str(&format!("[[axis]]\nname = \"{name}\"\nvalues = [{}]\n", values.join(", ")));
    }
    Plan::read(&text).unwrap()
}

fn case(values: &[&[f64]]) -> Case {
    let values = values.iter().map(|each| Some(each.to_vec())).collect();
    Case { title: "case".to_owned(), quantity: Quantity::Bandwidth, values }
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found}, not {expected}");
}

#[test]
fn a_plan_becomes_the_words_of_its_runs() {
    let text = r#"
        command = "nccl"
        flags = ["--output-like", "a b"]
        env = { NCCL_DEBUG = "WARN" }
        launcher = "mpirun -np 8"
        repetitions = 2
        [[axis]]
        name = "NCCL_ALGO"
        values = ["Ring", "Tree"]
        [[axis]]
        name = "--ranks"
        values = [1, 8]
        [[axis]]
        name = "path"
        values = [{ label = "p2p" }, { label = "net", flags = "-x 1", env = { NCCL_P2P_DISABLE = 1 } }]
    "#;
    let plan = Plan::read(text).unwrap();
    assert_eq!(plan.launcher, ["mpirun", "-np", "8"]);
    assert_eq!((plan.combinations.len(), plan.repetitions), (8, 2));
    let words: Vec<String> = plan.combinations.iter().map(|each| each.words.join("|")).collect();
    let common = "nccl|--output-like|a b|--nccl-env|NCCL_DEBUG=WARN|--nccl-env";
    assert_eq!(words[0], format!("{common}|NCCL_ALGO=Ring|--ranks|1"));
    let net = "-x|1|--nccl-env|NCCL_P2P_DISABLE=1";
    assert_eq!(words[7], format!("{common}|NCCL_ALGO=Tree|--ranks|8|{net}"));
    assert_eq!(plan.describe(7), "NCCL_ALGO=Tree --ranks=8 path=net");
}

#[test]
fn commands_can_be_an_axis() {
    let text =
        "flags = \"--sizes 1M\"\n[[axis]]\nname = \"command\"\nvalues = [\"p2p\", \"shm\"]\n";
    let plan = Plan::read(text).unwrap();
    assert_eq!(plan.combinations[1].words, ["shm", "--sizes", "1M"]);
    assert_eq!(plan.repetitions, 5);
}

#[test]
fn listed_combinations_are_the_only_ones() {
    let axes = "command = \"p2p\"\n[[axis]]\nname = \"--issuer\"\nvalues = [\"read\", \"write\"]\n\
                [[axis]]\nname = \"--ranks\"\nvalues = [1, 2]\n";
    let listed = "[[combination]]\n--ranks = 2\n--issuer = \"write\"\n[[combination]]\n--issuer = \
                  \"read\"\n--ranks = 1\n";
    let plan = Plan::read(&format!("{axes}{listed}")).unwrap();
    let values: Vec<&[usize]> = plan.combinations.iter().map(|each| &each.values[..]).collect();
    assert_eq!(values, [[1, 1], [0, 0]]);
    for (bad, line, part) in [
        ("[[combination]]\n--ranks = 2\n", 8, "no value of `--issuer`"),
        ("[[combination]]\n--ranks = 3\n--issuer = \"read\"\n", 9, "`--ranks` has no value `3`"),
        ("[[combination]]\n--rank = 1\n", 9, "no axis `--rank`"),
        ("[[combination]]\n--ranks = 1\n--issuer = \"read\"\n", 14, "there already"),
    ] {
        let listed = if part == "there already" { listed } else { "" };
        let err = Plan::read(&format!("{axes}{listed}{bad}")).unwrap_err();
        assert_eq!(err.line, line, "{err}");
        assert!(err.to_string().contains(part), "{err}");
    }
}

#[test]
fn what_is_wrong_with_a_plan_is_named_with_line_and_key() {
    let p2p = |rest: &str| format!("command = \"p2p\"\n{rest}");
    let with = |first: &str| format!("{first}\n[[axis]]\nname = \"--ranks\"\nvalues = [1]\n");
    let axis =
        |name: &str, values: &str| p2p(&format!("[[axis]]\nname = \"{name}\"\nvalues = {values}"));
    for (text, start) in [
        (p2p(""), "line 1: missing field `axis`"),
        (p2p("axis = []"), "line 2, `axis`: there is none"),
        (with(""), "line 2: there is no `command` above"),
        (with("command = \"p2p"), "line 1"),
        (with("commands = \"p2p\""), "line 1: unknown field `commands`"),
        (
            with("command = \"topo\""),
            "line 1, `command`: `topo` measures nothing: write one of run",
        ),
        (with("flags = 3"), "line 1, `flags`: invalid type: integer `3`, expected words"),
        (with(&p2p("repetitions = 0")), "line 2, `repetitions`: 0 is not between 1 and 1000"),
        (axis("a,b", "[1]"), "line 3, `axis.name`: `a,b` is no name"),
        (axis("--x", "[]"), "line 4, `axis.values`: `--x` has no value"),
        (axis("--x", "[1, \"1\"]"), "line 4, `axis.values`: `1` is there twice"),
        (axis("--x", "[\"1,2\"]"), "line 4, `axis.values`: `1,2` is no label"),
        (axis("--x", "[true]"), "line 4, `axis.values`: invalid type: boolean"),
        (axis("x", "[\"1\"]"), "line 4, `axis.values`: `x` is neither a flag"),
        (
            axis("x", "[{ label = \"a\", flag = \"b\" }]"),
            "line 4, `axis.values`: unknown field `flag`",
        ),
        (axis("command", "[\"shm\"]"), "line 1, `command`: `command` is an axis"),
        (with(&axis("--ranks", "[2]")), "line 6, `axis.name`: `--ranks` is there twice"),
    ] {
        let err = Plan::read(&text).unwrap_err().to_string();
        assert!(err.starts_with(start) && !err.contains('\n'), "{text}: {err}");
    }
    let many = (0..22).map(|n| format!("[[axis]]\nname = \"--a{n}\"\nvalues = [0, 1]\n"));
    let err = Plan::read(&p2p(&many.collect::<String>())).unwrap_err().to_string();
    assert!(err.contains("more than 10000 runs"), "{err}");
}

#[test]
fn every_repetition_has_all_combinations_in_another_order() {
    let plan = plan_of(&[("a", &["0", "1", "2"]), ("b", &["0", "1"])], 20);
    let runs = plan.runs();
    assert_eq!(runs.len(), 120);
    assert_eq!(runs, plan.runs());
    let mut firsts = Vec::new();
    for (place, repetition) in runs.chunks(6).enumerate() {
        let mut combinations: Vec<usize> = repetition.iter().map(|run| run.combination).collect();
        assert!(repetition.iter().all(|run| run.repetition == place + 1));
        firsts.push(combinations[0]);
        combinations.sort_unstable();
        assert_eq!(combinations, [0, 1, 2, 3, 4, 5]);
    }
    let most = (0..6).map(|c| firsts.iter().filter(|&&first| first == c).count()).max().unwrap();
    assert!(most < 10, "one comes first {most} times of 20");
}

/// Made by scipy 1.17 (`stats.ttest_rel` of logarithms, `stats.t.interval`) and statsmodels 0.14
/// (`multipletests(…, method="fdr_bh")`).
#[test]
fn effects_are_those_of_another_program() {
    let plan = plan_of(&[("a", &["0", "1", "2", "3", "4"])], 5);
    let found = findings(
        &plan,
        &[case(&[
            &[100.1, 99.5, 100.2, 100.8, 99.9],
            &[101.2, 99.8, 102.5, 100.9, 101.7],
            &[110.3, 111.9, 109.2, 110.8, 112.4],
            &[100.3, 99.2, 100.9, 100.1, 100.6],
            &[98.0, 97.9, 97.1, 98.8, 97.3],
        ])],
    );
    let [found] = &found[..] else { panic!("one case") };
    let order: Vec<usize> = found.ranking.iter().map(|place| place.combination).collect();
    assert_eq!(order, [2, 1, 3, 0, 4]);
    assert_eq!((found.ranking[0].median, found.ranking[0].min), (110.8, 109.2));
    let lead = found.lead.as_ref().unwrap();
    assert_eq!(lead.next, 1);
    use ChangeVerdict::{Faster, Same, Slower};
    let expected = [
        (1.011158478, 5.632075516e-02, 7.040094395e-02, 0.999519500, 1.022932988, Same),
        (1.108043172, 8.971852771e-05, 4.485926386e-04, 1.088463483, 1.127975067, Faster),
        (1.001191113, 6.879509438e-01, 6.879509438e-01, 0.993562088, 1.008878716, Same),
        (0.977213316, 9.616771892e-04, 1.602795315e-03, 0.970050068, 0.984429462, Slower),
        (1.095815538, 4.119311443e-04, 1.029827861e-03, 1.070417661, 1.121816032, Faster),
    ];
    let changes = found.effects.iter().map(|each| &each.change).chain([&lead.change]);
    for (change, (ratio, p, q, low, high, verdict)) in changes.zip(expected) {
        let known = change.known.unwrap();
        assert_near(1.0 + change.share, ratio);
        assert_near(known.p, p);
        assert_near(known.q, q);
        assert_near(1.0 + known.low, low);
        assert_near(1.0 + known.high, high);
        assert_eq!(change.verdict(found.quantity), verdict);
    }
}

#[test]
fn an_effect_is_the_mean_over_the_other_axes_and_less_latency_is_better() {
    let plan = plan_of(&[("a", &["0", "1"]), ("b", &["0", "1"])], 2);
    // a=1 doubles with b=0 and halves twice with b=1; b=1 is listed with a=1 second.
    let mut case = case(&[&[10.0, 10.0], &[40.0, 40.0], &[20.0, 20.0], &[10.0, 10.0]]);
    case.quantity = Quantity::Latency;
    let found = &findings(&plan, &[case.clone()])[0];
    assert_eq!(found.ranking[0].combination, 0);
    let [a, b] = &found.effects[..] else { panic!("two effects") };
    assert_near(1.0 + a.change.share, 0.5_f64.sqrt());
    assert_near(1.0 + b.change.share, 2.0_f64.sqrt());
    let [a, b] = [a, b].map(|each| each.change.verdict(found.quantity));
    assert_eq!((a, b), (ChangeVerdict::Faster, ChangeVerdict::Slower));
    // What has no partner with a number is no effect.
    case.values[0] = None;
    case.values[3] = None;
    let found = &findings(&plan, &[case])[0];
    assert!(found.effects.is_empty());
    assert_eq!(found.ranking.len(), 2);
}

#[test]
fn one_repetition_and_equal_numbers_show_no_difference() {
    let one = plan_of(&[("a", &["0", "1"])], 1);
    let found = &findings(&one, &[case(&[&[10.0], &[20.0]])])[0];
    let change = &found.effects[0].change;
    assert_eq!(change.known, None);
    assert_eq!(change.verdict(found.quantity), ChangeVerdict::Unknown);
    let two = plan_of(&[("a", &["0", "1"])], 2);
    let found = &findings(&two, &[case(&[&[10.0, 11.0], &[10.0, 11.0]])])[0];
    assert_eq!(found.effects[0].change.verdict(found.quantity), ChangeVerdict::Same);
    assert!(
        findings(&two, &[Case { values: vec![None, None], ..case(&[]) }])[0].ranking.is_empty()
    );
}

/// Of the differences that are called real 19 of 20 must be, and what is large must be found.
#[test]
fn differences_of_chance_are_noise_and_large_ones_are_found() {
    use rand_distr::{Distribution, Normal};

    let plan = plan_of(&[("a", &["0", "1", "2"]), ("b", &["0", "1"])], 5);
    let noise: Normal<f64> = Normal::new(0.0, 0.01).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let (mut wrong, mut real, mut missed) = (0.0, 0.0, 0);
    for _ in 0..1000 {
        let values = plan.combinations.iter().map(|combination| {
            // The last value of `a` is 10 % faster; all else is chance.
            let truth = if combination.values[0] == 2 { 110.0 } else { 100.0 };
            Some((0..5).map(|_| truth * noise.sample(&mut random).exp()).collect())
        });
        let case = Case { values: values.collect(), ..case(&[]) };
        let found = &findings(&plan, &[case])[0];
        let verdicts = found.effects.iter().map(|each| each.change.verdict(found.quantity));
        let verdicts: Vec<ChangeVerdict> = verdicts.collect();
        missed += usize::from(verdicts[1] != ChangeVerdict::Faster);
        let chances = [&verdicts[0], &verdicts[2]].map(|verdict| *verdict != ChangeVerdict::Same);
        wrong += chances.into_iter().map(f64::from).sum::<f64>();
        real += verdicts.iter().filter(|verdict| **verdict != ChangeVerdict::Same).count() as f64;
    }
    assert!(wrong <= 0.05 * real, "{wrong} of {real} differences");
    assert!(missed <= 50, "{missed} of 1000 sweeps");
}

#[test]
fn rows_of_runs_are_the_same_case_but_for_what_the_axes_vary() {
    let plan = plan_of(&[("issuer", &["read", "write"])], 1);
    let row = |issuer, size: u64, rate: Option<f64>| Row {
        issuer: Some(issuer),
        source_memory: Some(MemoryKind::Gpu),
        source_gpu: Some(0),
        target_memory: Some(MemoryKind::Host),
        target_numa_node: Some(1),
        size_bytes: Some(Bytes::new(size)),
        bandwidth_gb_s: rate,
        ..Row::absent(0, TransportKind::P2p, "")
    };
    let read = |size, rate| row(Issuer::Read, size, Some(rate));
    let write = |size, rate| row(Issuer::Write, size, rate);
    let run = |combination| Run { number: combination + 1, repetition: 1, combination };
    let absent = Row::absent(0, TransportKind::Nccl, "");
    let reads = vec![read(1024, 4.0), read(2048, 9.0), absent];
    let writes = vec![write(1024, Some(16.0)), write(2048, None)];
    let found = cases(&plan, &[(run(1), writes), (run(0), reads)]);
    let titles: Vec<&str> = found.iter().map(|case| case.title.as_str()).collect();
    let case = "p2p gpu -> host, GPU 0 -> NUMA node 1,";
    let sizes = [format!("{case} 1 KiB"), format!("{case} 2 KiB")];
    assert_eq!(titles, ["all 2 bandwidths, geometric mean", &sizes[0], &sizes[1]]);
    assert_eq!(found[1].values, [Some(vec![4.0]), Some(vec![16.0])]);
    assert_eq!(found[2].values, [Some(vec![9.0]), None]);
    assert_near(found[0].values[0].as_ref().unwrap()[0], 6.0);
    assert_eq!(found[0].values[1], None);
    // Rows that nothing tells apart come in the same order in every run.
    let twice = |first, second| vec![read(1024, first), read(1024, second)];
    let found = cases(&plan, &[(run(0), twice(1.0, 2.0)), (run(1), twice(3.0, 4.0))]);
    assert_eq!(found[1].values, [Some(vec![1.0]), Some(vec![3.0])]);
    assert_eq!(found[2].title, "p2p read gpu -> host, GPU 0 -> NUMA node 1, 1 KiB (2)");
    // Without a bandwidth it is the latency.
    let chase = Row { latency_ns_p50: Some(700), ..read(8, 0.0) };
    let chase = Row { bandwidth_gb_s: None, ..chase };
    let found = cases(&plan, &[(run(0), vec![chase.clone()]), (run(1), vec![chase])]);
    assert_eq!((found.len(), found[0].quantity), (1, Quantity::Latency));
    assert_eq!(found[0].values[0], Some(vec![700.0]));
}

#[test]
fn what_is_quoted_in_a_refusal_stays_on_its_line() {
    for text in [
        "command = \"a\\nb\"\n[[axis]]\nname = \"n\"\nvalues = [1, 2]\n",
        "command = \"shm\"\n\"a\\nb\" = 1\n",
        "command = \"shm\"\nflags = 3\n[[axis]]\nname = \"a\\nb\"\nvalues = [1, 2]\n",
    ] {
        let told = Plan::read(text).unwrap_err().to_string();
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
