//! Made-up input: what is real, with random damage. The same seed makes the same input.

/// What readers and whoever shows their words have been tricked with.
const HOSTILE: [&str; 22] = [
    "",
    "0",
    "-1",
    "NaN",
    "inf",
    "1e309",
    "-0.0",
    "18446744073709551616",
    "9223372036854775807",
    "4294967295",
    "99999999999999999999999999999999",
    "null",
    "true",
    "\"",
    "\u{1b}]0;title\u{7}\u{1b}[2J",
    "\u{9b}31m",
    "</script><img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "&lt;b&gt; {{ 7 }}",
    "../../../../etc/passwd",
    "\u{202e}\u{feff}\0",
];

/// A source of chance that is the same everywhere (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `end`; 0 of nothing.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap_or_default() % end.max(1)
    }
}

/// `text` with one to four kinds of damage.
pub(crate) fn damaged(text: &[u8], seed: u64) -> Vec<u8> {
    let mut chance = Chance(seed);
    let mut bytes = text.to_vec();
    for _ in 0..=chance.below(4) {
        damage(&mut bytes, &mut chance);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let at = chance.below(bytes.len());
    let kind = chance.below(11);
    match kind {
        0 => bytes.truncate(at),
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << chance.below(8);
            }
        }
        2 => {
            let length = chance.below(64);
            bytes.drain(at..bytes.len().min(at + length));
        }
        3 => {
            let length = chance.below(64);
            let piece = bytes[at..bytes.len().min(at + length)].to_vec();
            let times = 1 + chance.below(20);
            bytes.splice(at..at, piece.repeat(times));
        }
        4 => {
            let words = HOSTILE[chance.below(HOSTILE.len())];
            bytes.splice(at..at, words.bytes());
        }
        // A line, a cell or a number in another's place, or something hostile there.
        5 => swap(bytes, chance, |byte| byte == b'\n'),
        6 => swap(bytes, chance, |byte| b",\n".contains(&byte)),
        7 | 8 => replace(bytes, chance, |byte| b" ,:=\"\n[]{}".contains(&byte)),
        9 => replace(bytes, chance, |byte| !byte.is_ascii_digit()),
        // Deep nesting.
        _ => {
            let (open, close) = [(b'[', b']'), (b'{', b'}'), (b'(', b')')][chance.below(3)];
            let depth = 1 << chance.below(13);
            bytes.splice(at..at, [vec![open; depth], vec![close; depth]].concat());
        }
    }
}

/// Where the pieces between these bytes begin and end.
fn piece(bytes: &[u8], at: usize, ends: impl Fn(u8) -> bool) -> (usize, usize) {
    let begin = bytes[..at].iter().rposition(|&byte| ends(byte)).map_or(0, |place| place + 1);
    let end = bytes[at..].iter().position(|&byte| ends(byte)).map_or(bytes.len(), |n| at + n);
    (begin, end.max(begin))
}

fn swap(bytes: &mut Vec<u8>, chance: &mut Chance, ends: impl Fn(u8) -> bool + Copy) {
    let [one, other] = [chance.below(bytes.len()), chance.below(bytes.len())];
    let ((a, b), (c, d)) = (piece(bytes, one.min(other), ends), piece(bytes, one.max(other), ends));
    if b <= c {
        let (first, second) = (bytes[a..b].to_vec(), bytes[c..d].to_vec());
        bytes.splice(c..d, first);
        bytes.splice(a..b, second);
    }
}

fn replace(bytes: &mut Vec<u8>, chance: &mut Chance, ends: impl Fn(u8) -> bool) {
    // Of several places one that has something between its ends.
    for _ in 0..20 {
        let (begin, end) = piece(bytes, chance.below(bytes.len()), &ends);
        if begin < end {
            bytes.splice(begin..end, HOSTILE[chance.below(HOSTILE.len())].bytes());
            return;
        }
    }
}
