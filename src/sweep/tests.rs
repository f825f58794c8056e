use super::*;

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
/// (`multipletests(…, method="holm")`).
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
    let expected = [
        (1.011158478, 5.632075516e-02, 0.05 / 2.0, 0.996527485, 1.026004283, Verdict::Noise),
        (1.108043172, 8.971852771e-05, 0.05 / 5.0, 1.075763985, 1.141290922, Verdict::Faster),
        (1.001191113, 6.879509438e-01, 0.05 / 2.0, 0.991596045, 1.010879026, Verdict::Noise),
        (0.977213316, 9.616771892e-04, 0.05 / 3.0, 0.967010457, 0.987523825, Verdict::Slower),
        (1.095815538, 4.119311443e-04, 0.05 / 4.0, 1.056600968, 1.136485513, Verdict::Faster),
    ];
    let effects = found.effects.iter().map(|each| &each.effect).chain([&lead.effect]);
    for (effect, (ratio, p, level, low, high, verdict)) in effects.zip(expected) {
        assert_near(effect.ratio, ratio);
        assert_near(effect.p.unwrap(), p);
        assert_near(effect.level.unwrap(), level);
        assert_near(effect.low.unwrap(), low);
        assert_near(effect.high.unwrap(), high);
        assert_eq!(effect.verdict, verdict);
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
    assert_near(a.effect.ratio, 0.5_f64.sqrt());
    assert_near(b.effect.ratio, 2.0_f64.sqrt());
    assert_eq!((a.effect.verdict, b.effect.verdict), (Verdict::Faster, Verdict::Slower));
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
    let effect = &found.effects[0].effect;
    assert_eq!((effect.verdict, effect.p, effect.low), (Verdict::Unknown, None, None));
    let two = plan_of(&[("a", &["0", "1"])], 2);
    let found = &findings(&two, &[case(&[&[10.0, 11.0], &[10.0, 11.0]])])[0];
    assert_eq!(found.effects[0].effect.verdict, Verdict::Noise);
    assert!(
        findings(&two, &[Case { values: vec![None, None], ..case(&[]) }])[0].ranking.is_empty()
    );
}

/// What is called real must be real in 19 of 20 sweeps at least, and what is large must be found.
#[test]
fn differences_of_chance_are_noise_and_large_ones_are_found() {
    use rand_distr::{Distribution, Normal};

    let plan = plan_of(&[("a", &["0", "1", "2"]), ("b", &["0", "1"])], 5);
    let noise: Normal<f64> = Normal::new(0.0, 0.01).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let (mut wrong, mut missed) = (0, 0);
    for _ in 0..1000 {
        let values = plan.combinations.iter().map(|combination| {
            // The last value of `a` is 10 % faster; all else is chance.
            let truth = if combination.values[0] == 2 { 110.0 } else { 100.0 };
            Some((0..5).map(|_| truth * noise.sample(&mut random).exp()).collect())
        });
        let case = Case { values: values.collect(), ..case(&[]) };
        let found = &findings(&plan, &[case])[0];
        let verdicts = found.effects.iter().map(|each| each.effect.verdict);
        let verdicts: Vec<Verdict> = verdicts.collect();
        missed += usize::from(verdicts[1] != Verdict::Faster);
        wrong += usize::from(verdicts[0] != Verdict::Noise || verdicts[2] != Verdict::Noise);
    }
    assert!(wrong <= 50, "{wrong} of 1000 sweeps");
    assert!(missed <= 50, "{missed} of 1000 sweeps");
}

fn line(cells: &[(&str, &str)]) -> Line {
    cells.iter().map(|&(column, cell)| (column.to_owned(), cell.to_owned())).collect()
}

#[test]
fn rows_of_runs_are_the_same_case_but_for_what_the_axes_vary() {
    let plan = plan_of(&[("issuer", &["read", "write"])], 1);
    let row = |issuer: &str, size: &str, rate: &str| {
        line(&[
            ("transport", "p2p"),
            ("issuer", issuer),
            ("source_memory", "gpu"),
            ("source_gpu", "0"),
            ("target_memory", "host"),
            ("size_bytes", size),
            ("bandwidth_gb_s", rate),
        ])
    };
    let run = |combination| Run { number: combination + 1, repetition: 1, combination };
    let absent = line(&[("transport", "nccl"), ("size_bytes", "")]);
    let read = vec![row("read", "1024", "4"), row("read", "2048", "9"), absent];
    let write = vec![row("write", "1024", "16"), row("write", "2048", "")];
    let found = cases(&plan, &[(run(1), write), (run(0), read)]);
    let titles: Vec<&str> = found.iter().map(|case| case.title.as_str()).collect();
    let case = "p2p GPU 0 -> host";
    let sizes = [format!("{case} 1 KiB"), format!("{case} 2 KiB")];
    assert_eq!(titles, ["all 2 bandwidths, geometric mean", &sizes[0], &sizes[1]]);
    assert_eq!(found[1].values, [Some(vec![4.0]), Some(vec![16.0])]);
    assert_eq!(found[2].values, [Some(vec![9.0]), None]);
    assert_near(found[0].values[0].as_ref().unwrap()[0], 6.0);
    assert_eq!(found[0].values[1], None);
    // Rows that nothing tells apart come in the same order in every run.
    let twice = |first, second| vec![row("read", "1024", first), row("read", "1024", second)];
    let found = cases(&plan, &[(run(0), twice("1", "2")), (run(1), twice("3", "4"))]);
    assert_eq!(found[1].values, [Some(vec![1.0]), Some(vec![3.0])]);
    assert_eq!(found[2].title, "p2p read GPU 0 -> host 1 KiB (2)");
    // Without a bandwidth it is the latency.
    let chase = line(&[("size_bytes", "8"), ("bandwidth_gb_s", ""), ("latency_ns_p50", "700")]);
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
