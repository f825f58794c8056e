//! The machine as a picture: GPUs, switches and network interfaces where they are attached, and
//! the rates of their links.

use std::collections::HashMap;

use indexmap::{IndexMap, IndexSet};
use svg::{
    Document, Node,
    node::element::{Line, Path, Rectangle, Text, Title},
};

use super::{topology::pcie, words};
use crate::machine::{
    links::{End, GpuLinks},
    pci::{Device, Link},
    survey::{Survey, SurveyedGpu, SurveyedNic},
};

/// A point or a size: x and y.
type Point = (f64, f64);

/// Sizes, in the picture's units: a letter of the smallest text is about 5 of them wide.
const GPU: Point = (152.0, 84.0);
const NIC: Point = (66.0, 32.0);
const BAR_HEIGHT: f64 = 26.0;
const GAP: f64 = 10.0;
const MARGIN: f64 = 16.0;
/// Between rows that links join.
const DROP: f64 = 30.0;
/// At the left of the interfaces, where the link from the switch to the CPUs passes.
const TRUNK: f64 = 14.0;
/// Between links from GPU to GPU that pass one above the other, and where they begin.
const LANE: Point = (18.0, 7.0);

/// A colour of a kind of part: of its area, and of its edge.
type Colour = (&'static str, &'static str);

const OF_GPU: Colour = ("#eaf4e2", "#4c8c2b");
const OF_NIC: Colour = ("#e5eefb", "#3867b0");
const OF_PCIE: Colour = ("#f6efdc", "#9a7b2f");
const OF_NVLINK: Colour = ("#dcf1ee", "#1f7f75");
const OF_CPU: Colour = ("#eeeeee", "#666666");
const OF_NODE: Colour = ("#fafafa", "#cccccc");
const INK: &str = "#222222";
const PALE: &str = "#555555";
const ALARM: &str = "#c62828";

/// A GPU and its links.
struct Part<'a> {
    gpu: &'a SurveyedGpu,
    links: GpuLinks,
}

/// The devices of one PCI Express switch or host bridge.
struct Branch<'a> {
    label: String,
    gpus: Vec<Part<'a>>,
    nics: Vec<&'a SurveyedNic>,
}

/// A NUMA node and its devices; the last one has the devices whose node is unknown.
struct Side<'a> {
    label: String,
    branches: Vec<Branch<'a>>,
}

/// The picture, as one self-contained SVG element.
pub fn picture(survey: &Survey) -> String {
    let sides = sides(survey);
    let widths: f64 = sides.iter().map(|side| side.width() + 2.0 * GAP).sum();
    let direct = direct(&sides);
    let mut canvas = Canvas {
        document: Document::new(),
        width: (widths - 2.0 * GAP).max(4.0 * GPU.0) + 2.0 * MARGIN,
        rows: rows(survey, &sides, &direct),
        places: HashMap::new(),
    };
    canvas.draw(survey, &sides, &direct);
    canvas.document.to_string() + "\n"
}

/// All parts by NUMA nodes.
fn sides(survey: &Survey) -> Vec<Side<'_>> {
    let of_gpu = |gpu: &SurveyedGpu| gpu.node.numa_node.map(|node| node.0);
    let of_nic = |nic: &SurveyedNic| nic.nic.pci.as_ref().and_then(|pci| pci.numa_node);
    let of_parts = survey.gpus.iter().map(of_gpu).chain(survey.nics.iter().map(of_nic));
    let numbers: IndexSet<Option<u32>> =
        survey.nodes.iter().map(|node| Some(node.number)).chain(of_parts).collect();
    let side = |number: Option<u32>| {
        let node = survey.nodes.iter().find(|node| Some(node.number) == number);
        let cpus = node.and_then(|node| node.cpus.clone()).filter(|cpus| !cpus.is_empty());
        let label = match (number, cpus) {
            (Some(number), Some(cpus)) => format!("NUMA node {number}, CPUs {cpus}"),
            (Some(number), None) => format!("NUMA node {number}"),
            (None, _) => "NUMA node not told".to_owned(),
        };
        let mut branches: IndexMap<String, Branch<'_>> = IndexMap::new();
        for gpu in survey.gpus.iter().filter(|gpu| of_gpu(gpu) == number) {
            let links = GpuLinks::of(gpu, survey);
            branch(&mut branches, gpu.pci.as_ref()).gpus.push(Part { gpu, links });
        }
        for nic in survey.nics.iter().filter(|nic| of_nic(nic) == number) {
            branch(&mut branches, nic.nic.pci.as_ref()).nics.push(nic);
        }
        Side { label, branches: branches.into_values().collect() }
    };
    numbers.into_iter().map(side).collect()
}

/// The branch of a device, made if it is its first one.
fn branch<'a, 'b>(
    branches: &'b mut IndexMap<String, Branch<'a>>,
    device: Option<&Device>,
) -> &'b mut Branch<'a> {
    let path = device.map_or(&[][..], |device| device.path.as_slice());
    let (key, label) = match path {
        // Below a host bridge and its port: the two ends of a switch, and the device.
        [bridge, port, switch, _, _, ..] => {
            (format!("{bridge}/{port}"), format!("PCIe switch {switch}"))
        }
        [bridge, ..] => (bridge.clone(), format!("PCIe bus {}", bridge.trim_start_matches("pci"))),
        [] => (String::new(), "place on PCIe not told".to_owned()),
    };
    branches.entry(key).or_insert_with(|| Branch { label, gpus: Vec::new(), nics: Vec::new() })
}

impl Branch<'_> {
    fn width(&self) -> f64 {
        let gpus = self.gpus.len().max(1) as f64;
        gpus * GPU.0 + (gpus - 1.0) * GAP
    }

    /// Interfaces beside each other below the switch.
    fn columns(&self) -> usize {
        self.gpus.len().max(1) * 2
    }

    fn nics_height(&self) -> f64 {
        self.nics.len().div_ceil(self.columns()) as f64 * (NIC.1 + GAP)
    }
}

impl Side<'_> {
    fn width(&self) -> f64 {
        let inner: f64 = self.branches.iter().map(|branch| branch.width() + GAP).sum();
        (inner - GAP).max(2.0 * GPU.0) + 2.0 * GAP
    }
}

/// Where the rows of the picture begin.
#[derive(Clone, Copy)]
struct Rows {
    gpus: f64,
    pcie: f64,
    nics: f64,
    cpus: f64,
    end: f64,
}

/// The picture while it is drawn.
struct Canvas {
    document: Document,
    width: f64,
    rows: Rows,
    /// The middle of each GPU, by its ordinal.
    places: HashMap<u32, f64>,
}

impl Canvas {
    fn draw(&mut self, survey: &Survey, sides: &[Side<'_>], direct: &[Direct]) {
        let Rows { gpus, cpus, end, .. } = self.rows;
        let title = title(survey);
        self.document.assign("viewBox", (0, 0, self.width, end));
        self.document.assign("width", self.width);
        self.document.assign("height", end);
        self.document.assign("role", "img");
        self.document.assign("font-family", "system-ui, 'DejaVu Sans', sans-serif");
        self.document.append(Title::new(plain(&title)));
        self.area((0.0, 0.0), (self.width, end), ("#ffffff", "none"), "");
        self.text((MARGIN, 26.0), &title, (16.0, INK, "start"));
        let mut left = MARGIN;
        let mut before: Option<f64> = None;
        for side in sides {
            let width = side.width();
            let top = gpus - GAP;
            let height = cpus + BAR_HEIGHT + GAP - top;
            self.area((left, top), (width, height), OF_NODE, "");
            self.bar((left + GAP, cpus), width - 2.0 * GAP, OF_CPU, &side.label);
            if let Some(end) = before {
                let middle = cpus + BAR_HEIGHT / 2.0;
                let (from, to) = ((end, middle), (left + GAP, middle));
                self.line(from, to, (OF_CPU.1, 3.0), "between NUMA nodes");
            }
            before = Some(left + width - GAP);
            let mut at = left + GAP;
            for branch in &side.branches {
                self.branch(branch, at);
                at += branch.width() + GAP;
            }
            left += width + 2.0 * GAP;
        }
        self.nvlinks(survey, direct);
        let note =
            "Rates are those of the links in one direction, with nothing taken off for packets.";
        self.text((MARGIN, end - 12.0), note, (10.0, PALE, "start"));
    }

    fn branch(&mut self, branch: &Branch<'_>, left: f64) {
        let Rows { gpus, pcie, nics: top, cpus, .. } = self.rows;
        let trunk = left + TRUNK / 2.0;
        let down = (OF_PCIE.1, 2.0);
        self.line((trunk, pcie), (trunk, cpus), down, &branch.label);
        for (place, part) in branch.gpus.iter().enumerate() {
            let gpu = part.gpu;
            let at = left + place as f64 * (GPU.0 + GAP);
            let middle = at + GPU.0 / 2.0;
            self.line((middle, gpus + GPU.1), (middle, pcie), down, "PCIe");
            if let Some(c2c) = gpu.nvml.as_ref().and_then(|gpu| gpu.c2c) {
                let x = at + GPU.0 - 8.0;
                let rate = c2c.gb_s.map(|gb_s| format!(", {gb_s:.0} GB/s")).unwrap_or_default();
                let name = format!("NVLink-C2C, {} of {} up{rate}", c2c.active, c2c.links);
                self.line((x, gpus + GPU.1), (x, cpus), (OF_NVLINK.1, 4.0), &name);
            }
            self.gpu(part, (at, gpus));
            self.places.insert(gpu.node.gpu.0, middle);
        }
        self.bar((left, pcie), branch.width(), OF_PCIE, &branch.label);
        // From the trunk to each row of interfaces; the interfaces cover the rest of the line.
        for (row, nics) in branch.nics.chunks(branch.columns()).enumerate() {
            let top = top + row as f64 * (NIC.1 + GAP);
            let last = left + TRUNK + (nics.len() - 1) as f64 * (NIC.0 + GAP / 2.0);
            let middle = top + NIC.1 / 2.0;
            self.line((trunk, middle), (last, middle), down, "PCIe");
            for (column, nic) in nics.iter().enumerate() {
                let x = left + TRUNK + column as f64 * (NIC.0 + GAP / 2.0);
                self.nic(nic, (x, top));
            }
        }
    }

    fn gpu(&mut self, Part { gpu, links }: &Part<'_>, (x, y): Point) {
        let name = format!("GPU {}: {}, {}", gpu.node.gpu.0, gpu.node.name, gpu.node.uuid);
        self.area((x, y), GPU, OF_GPU, &name);
        let (left, right) = (x + 7.0, x + GPU.0 - 7.0);
        self.text((left, y + 17.0), &format!("GPU {}", gpu.node.gpu.0), (13.0, INK, "start"));
        self.text((right, y + 17.0), &gpu.node.memory.rounded(), (11.0, INK, "end"));
        let name = gpu.node.name.trim_start_matches("NVIDIA ");
        self.text((left, y + 32.0), &shortened(name, 25), (10.0, INK, "start"));
        self.text((left, y + 46.0), &gpu.node.pci_bus_id, (10.0, PALE, "start"));
        let link = links.pcie_under_load();
        let (text, colour) = match (links.is_narrow(), links.pcie_max.lanes) {
            (true, Some(most)) => (format!("{} of x{most}{}", pcie(link), rate(link)), ALARM),
            _ => (format!("PCIe {}{}", pcie(link), rate(link)), PALE),
        };
        self.text((left, y + 60.0), &text, (10.0, colour, "start"));
        if links.nvlinks() > 0 {
            let generation = links.nvlink_generation.map(|number| number.to_string());
            let (generation, up) = (generation.unwrap_or_default(), links.nvlinks_up);
            let text = format!("{up} of {} NVLink{generation} up", links.nvlinks());
            let colour = if links.nvlinks_down.is_empty() { PALE } else { ALARM };
            self.text((left, y + 74.0), &text, (10.0, colour, "start"));
        }
    }

    fn nic(&mut self, nic: &SurveyedNic, (x, y): Point) {
        let nic = &nic.nic;
        let is_down = nic.ports.iter().any(|port| port.is_up == Some(false));
        let address = nic.pci.as_ref().map_or("?", |pci| pci.address.as_str());
        let kind = nic.kind;
        self.area((x, y), NIC, OF_NIC, &format!("{kind} {} at {address}", nic.name));
        self.text((x + 4.0, y + 13.0), &shortened(&nic.name, 12), (10.0, INK, "start"));
        let rate =
            nic.rate_gbit_s().map_or_else(|| kind.to_string(), |rate| format!("{rate} Gbit/s"));
        let (text, colour) = if is_down { ("down".to_owned(), ALARM) } else { (rate, PALE) };
        self.text((x + 4.0, y + 26.0), &text, (10.0, colour, "start"));
    }

    /// The NVLinks above the GPUs: to the switch, or from each to others.
    fn nvlinks(&mut self, survey: &Survey, direct: &[Direct]) {
        let gpus = self.rows.gpus;
        let bar = gpus - GAP - DROP - BAR_HEIGHT;
        if is_switched(survey) {
            // NVSwitches between machines are devices of no machine.
            let label = match survey.switches.len() {
                0 | 1 => "NVSwitch".to_owned(),
                count => format!("{count} NVSwitches"),
            };
            self.bar((MARGIN, bar), self.width - 2.0 * MARGIN, OF_NVLINK, &label);
        }
        for gpu in &survey.gpus {
            let links = GpuLinks::of(gpu, survey);
            let (x, count) = (self.places[&gpu.node.gpu.0], links.to_switch());
            if count == 0 {
                continue;
            }
            let text = match links.nvlink_gb_s {
                Some(each) => format!("{:.0} GB/s", each * f64::from(count)),
                None => format!("{count} links"),
            };
            let top = bar + BAR_HEIGHT;
            self.line((x, top), (x, gpus), (OF_NVLINK.1, 4.0), &format!("{count} NVLinks"));
            self.text((x + 6.0, top + 24.0), &text, (10.0, OF_NVLINK.1, "start"));
        }
        let mut labels: Vec<Text> = Vec::new();
        for way in direct {
            let ends = [(way.low, way.high), (way.high, way.low)];
            let [from, to] =
                ends.map(|(gpu, peer)| self.places[&gpu] + begin(direct, gpu, peer) * LANE.1);
            let top = gpus - 2.0 * GAP - LANE.0 * f64::from(way.lane);
            let name = format!("GPU {} and GPU {}: {} NVLinks", way.low, way.high, way.links);
            let path = Path::new()
                .set("d", format!("M {from} {gpus} L {from} {top} L {to} {top} L {to} {gpus}"))
                .set("fill", "none")
                .set("stroke", OF_NVLINK.1)
                .set("stroke-width", 2)
                .set("stroke-linejoin", "round")
                .add(Title::new(plain(&name)));
            self.document.append(path);
            let at = (f64::midpoint(from, to), top - 3.0);
            let label = text(at, &format!("NV{}", way.links), (10.0, OF_NVLINK.1, "middle"));
            let label = label.set("stroke", "#ffffff").set("stroke-width", 4);
            labels.push(label.set("paint-order", "stroke"));
        }
        // Above all lines; the white edge keeps them readable.
        for label in labels {
            self.document.append(label);
        }
    }

    fn area(&mut self, (x, y): Point, size: Point, colour: Colour, name: &str) {
        let mut area = Rectangle::new()
            .set("x", x)
            .set("y", y)
            .set("width", size.0)
            .set("height", size.1)
            .set("rx", 5)
            .set("fill", colour.0)
            .set("stroke", colour.1);
        if !name.is_empty() {
            area = area.add(Title::new(plain(name)));
        }
        self.document.append(area);
    }

    fn line(&mut self, from: Point, to: Point, stroke: (&str, f64), name: &str) {
        let line = Line::new()
            .set("x1", from.0)
            .set("y1", from.1)
            .set("x2", to.0)
            .set("y2", to.1)
            .set("stroke", stroke.0)
            .set("stroke-width", stroke.1)
            .add(Title::new(plain(name)));
        self.document.append(line);
    }

    fn text(&mut self, at: Point, words: &str, style: Style<'_>) {
        self.document.append(text(at, words, style));
    }

    /// A bar with its name in the middle, cut to the width.
    fn bar(&mut self, left_top: Point, width: f64, colour: Colour, name: &str) {
        /// The average width of a letter of this size.
        const LETTER: f64 = 6.2;
        self.area(left_top, (width, BAR_HEIGHT), colour, name);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small, above 0"
        )]
        let letters = (width / LETTER) as usize;
        let at = (left_top.0 + width / 2.0, left_top.1 + BAR_HEIGHT / 2.0 + 4.0);
        self.text(at, &shortened(name, letters), (11.0, INK, "middle"));
    }
}

/// The size, the colour and the anchor of a text.
type Style<'a> = (f64, &'a str, &'a str);

fn text(at: Point, words: &str, (size, colour, anchor): Style<'_>) -> Text {
    Text::new(plain(words))
        .set("x", at.0)
        .set("y", at.1)
        .set("font-size", size)
        .set("fill", colour)
        .set("text-anchor", anchor)
}

fn rows(survey: &Survey, sides: &[Side<'_>], direct: &[Direct]) -> Rows {
    let highest = direct.iter().map(|way| way.lane).max();
    let arcs = highest.map_or(0.0, |lane| LANE.0 * f64::from(lane) + 3.0 * GAP);
    let bar = if is_switched(survey) { BAR_HEIGHT + DROP } else { 0.0 };
    let gpus = 44.0 + arcs.max(bar) + GAP;
    let has_gpus = !survey.gpus.is_empty();
    let pcie = if has_gpus { gpus + GPU.1 + DROP / 2.0 } else { gpus };
    let nics = pcie + BAR_HEIGHT + GAP;
    let branches = sides.iter().flat_map(|side| &side.branches);
    let highest = branches.map(Branch::nics_height).fold(0.0, f64::max);
    let cpus = nics + highest + GAP;
    Rows { gpus, pcie, nics, cpus, end: cpus + BAR_HEIGHT + GAP + DROP }
}

/// Whether a GPU has NVLinks to a switch.
fn is_switched(survey: &Survey) -> bool {
    survey.gpus.iter().any(|gpu| GpuLinks::of(gpu, survey).to_switch() > 0)
}

/// NVLinks from one GPU to another, and where they pass.
struct Direct {
    /// The ordinal of the GPU at the left.
    low: u32,
    /// That of the one at the right.
    high: u32,
    /// The place of the one at the left.
    left: usize,
    links: u32,
    /// How many GPUs it goes to the right.
    steps: usize,
    /// Which row above the GPUs it takes.
    lane: u32,
}

/// The links from GPU to GPU; none passes through another, and those that go far pass above.
fn direct(sides: &[Side<'_>]) -> Vec<Direct> {
    let branches = sides.iter().flat_map(|side| &side.branches);
    let parts: Vec<&Part<'_>> = branches.flat_map(|branch| &branch.gpus).collect();
    let mut found: Vec<Direct> = Vec::new();
    for (left, part) in parts.iter().enumerate() {
        for (right, peer) in parts.iter().enumerate().skip(left + 1) {
            let peer = peer.gpu.node.gpu.0;
            let ends = part.links.ends.iter().find(|(end, _)| *end == End::Gpu(peer));
            let Some(&(_, links)) = ends else { continue };
            let low = part.gpu.node.gpu.0;
            found.push(Direct { low, high: peer, left, links, steps: right - left, lane: 0 });
        }
    }
    found.sort_by_key(|way| (way.steps, way.left));
    for at in 0..found.len() {
        let (before, rest) = found.split_at_mut(at);
        let way = &mut rest[0];
        let meets = |below: &&Direct| {
            below.left.max(way.left) < (below.left + below.steps).min(way.left + way.steps)
        };
        way.lane = before.iter().filter(meets).map(|below| below.lane + 1).max().unwrap_or(0);
    }
    found
}

/// How far from the middle of a GPU the link to a peer begins, so that none crosses another
/// there: from left to right the near ones at its left, the far ones, and the near ones at its
/// right.
fn begin(direct: &[Direct], gpu: u32, peer: u32) -> f64 {
    let mut ends: Vec<(bool, isize, u32)> = Vec::new();
    for way in direct {
        let steps = isize::try_from(way.steps).unwrap_or_default();
        if way.high == gpu {
            ends.push((false, steps, way.low));
        } else if way.low == gpu {
            ends.push((true, -steps, way.high));
        }
    }
    ends.sort_unstable();
    let place = ends.iter().position(|(.., other)| *other == peer).unwrap_or_default();
    place as f64 - (ends.len() as f64 - 1.0) / 2.0
}

/// The first line.
fn title(survey: &Survey) -> String {
    let machine = survey.product.as_deref().unwrap_or("this machine");
    let gpus = match survey.gpus.as_slice() {
        [] => "no GPU".to_owned(),
        [only] => only.node.name.clone(),
        [first, rest @ ..] if rest.iter().all(|gpu| gpu.node.name == first.node.name) => {
            format!("{} × {}", survey.gpus.len(), first.node.name)
        }
        all => format!("{} GPUs", all.len()),
    };
    format!("{machine}: {gpus}{}", words::mark(survey.simulated))
}

/// The rate of a link, after a comma.
fn rate(link: Link) -> String {
    link.gb_s().map(|gb_s| format!(", {gb_s:.1} GB/s")).unwrap_or_default()
}

/// A name, cut to so many letters.
fn shortened(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_owned();
    }
    let first: String = name.chars().take(letters.saturating_sub(1)).collect();
    format!("{first}…")
}

/// A text without the characters that XML does not allow.
fn plain(text: &str) -> String {
    let is_odd = |letter: char| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}');
    text.replace(is_odd, "?")
}
