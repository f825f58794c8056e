//! The ends of a connection: who listens, who connects, and the proof that both know the secret.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::Sha256;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::world::link::{Line, LinkError};

/// The variable with the secret.
pub(super) const SECRET: &str = "G2G_SECRET";

/// The fewest characters of a secret. Who hears a connection can try secrets until one fits.
pub(super) const SECRET_LENGTH_MIN: usize = 16;

/// What both ends say first.
pub(super) const MAGIC: [u8; 8] = *b"g2g tcp\x01";

/// The length of a random number.
pub(super) const NUMBER_LENGTH: usize = 32;

/// The length of a proof.
pub(super) const PROOF_LENGTH: usize = 32;

/// How long an end has to prove that it knows the secret.
pub(super) const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Connections that have not proved it yet, at most; others are closed at once.
const STRANGERS_MAX: usize = 256;

/// The time between two tries to reach a rank that does not listen yet.
const RETRY: Duration = Duration::from_millis(100);

/// What shows that an end knows the secret.
type Proof = [u8; PROOF_LENGTH];

/// What an end gives the other to make a proof of.
type Number = [u8; NUMBER_LENGTH];

/// What all ranks know, and nobody else.
#[derive(Clone)]
pub(super) struct Secret(Hmac<Sha256>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Which connection it is of these two ranks; 0: that of the whole world.
    pub(super) meeting: u64,
    /// Where it listens itself.
    pub(super) port: u16,
}

/// Somebody who knows the secret.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) hello: Hello,
    pub(super) line: Line,
    pub(super) address: IpAddr,
}

/// Where this rank listens.
#[derive(Debug)]
pub(super) struct Door {
    listener: Arc<Socket>,
    pub(super) port: u16,
    pub(super) guests: Receiver<Guest>,
    /// Why the last one was turned away.
    pub(super) refused: Arc<Mutex<Option<String>>>,
}

impl Door {
    /// Listens at `port`, or at one of the system's choice if that is 0, on all addresses.
    pub(super) fn open(port: u16, secret: &Secret) -> io::Result<Self> {
        let listen = |domain, address: IpAddr| {
            let listener = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            if domain == Domain::IPV6 {
                listener.set_only_v6(false)?;
            }
            // A run that has just ended leaves connections behind for a minute.
            listener.set_reuse_address(true)?;
            listener.bind(&SockAddr::from(SocketAddr::new(address, port)))?;
            listener.listen(1024)?;
            io::Result::Ok(listener)
        };
        let listener = match listen(Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()) {
            Err(err) if err.kind() != io::ErrorKind::AddrInUse => {
                listen(Domain::IPV4, Ipv4Addr::UNSPECIFIED.into())?
            }
            other => other?,
        };
        let own = listener.local_addr()?.as_socket();
        let listener = Arc::new(listener);
        let (send, guests) = channel();
        let refused = Arc::new(Mutex::new(None));
        let host = Host {
            listener: Arc::clone(&listener),
            secret: secret.clone(),
            send,
            refused: Arc::clone(&refused),
            strangers: Arc::default(),
        };
        thread::Builder::new().name("g2g-door".to_owned()).spawn(move || host.receive_all())?;
        Ok(Self { listener, port: own.map_or(port, |own| own.port()), guests, refused })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Ends the thread, whose `accept` fails from now on (shutdown(2) on Linux).
        let _ = self.listener.shutdown(std::net::Shutdown::Both);
    }
}

/// What receives those who connect.
#[derive(Clone)]
struct Host {
    listener: Arc<Socket>,
    secret: Secret,
    send: Sender<Guest>,
    refused: Arc<Mutex<Option<String>>>,
    strangers: Arc<AtomicUsize>,
}

impl Host {
    fn receive_all(&self) {
        loop {
            let (socket, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(err) if is_passing(&err) => continue,
                Err(_) => return,
            };
            let Some(address) = address.as_socket() else { continue };
            // It is closed at once where there are too many.
            if self.strangers.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX {
                self.strangers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let host = self.clone();
            let receive = move || {
                host.receive(socket, address.ip().to_canonical());
                host.strangers.fetch_sub(1, Ordering::Relaxed);
            };
            if thread::Builder::new().spawn(receive).is_err() {
                self.strangers.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn receive(&self, socket: Socket, address: IpAddr) {
        match self.greet(Line::new(socket)) {
            Ok((hello, line)) => drop(self.send.send(Guest { hello, line, address })),
            Err(reason) => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused = Some(format!("{address}: {reason}"));
            }
        }
    }

    fn greet(&self, mut line: Line) -> Result<(Hello, Line), String> {
        let due = Instant::now() + PROOF_LIMIT;
        let silent = |err: LinkError| match err {
            LinkError::Gone => "it has said nothing that g2g says".to_owned(),
            err => reason(&err),
        };
        let theirs = numbered(&mut line, due).map_err(silent)?;
        let theirs = theirs.ok_or("it is no g2g")?;
        let own: Number = rand::random();
        let proof = self.secret.prove("rank that listens", &theirs, &own);
        line.write(&[&MAGIC[..], &own, &proof].concat(), due).map_err(silent)?;
        let proof = line.read_exactly(PROOF_LENGTH, due);
        let proof = proof.map_err(|_| format!("it has another {SECRET}"))?;
        if !self.secret.is_proof("rank that connects", &theirs, &own, &proof) {
            return Err(format!("it has another {SECRET}"));
        }
        let hello = hear(&mut line, due)?;
        Ok((hello, line))
    }
}

/// Whether the next connection can be accepted all the same: accept(2).
fn is_passing(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

/// Why a rank is not reached, and whether it is worth another try.
pub(super) struct Refusal {
    reason: String,
    is_final: bool,
}

impl Refusal {
    pub(super) fn of(err: io::Error) -> Self {
        Self { reason: err.to_string(), is_final: false }
    }
}

/// Tries until it works, or cannot, or the time is over; then why it did not.
pub(super) fn until<T>(
    due: Instant,
    mut attempt: impl FnMut() -> Result<T, Refusal>,
) -> Result<T, String> {
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(Refusal { reason, is_final }) if is_final || Instant::now() + RETRY >= due => {
                return Err(reason);
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Connects to the first of `places` that answers, and proves both ways who it is.
pub(super) fn connect(
    places: &[SocketAddr],
    secret: &Secret,
    due: Instant,
) -> Result<(Line, SocketAddr), Refusal> {
    let mut refusal = Refusal { reason: "its name has no address".to_owned(), is_final: false };
    for place in places {
        let left = due.saturating_duration_since(Instant::now()).max(RETRY).min(PROOF_LIMIT);
        match TcpStream::connect_timeout(place, left) {
            Ok(stream) => {
                // Each message is one that somebody waits for.
                stream.set_nodelay(true).map_err(Refusal::of)?;
                let mut line = Line::new(stream);
                introduce(&mut line, secret)?;
                return Ok((line, *place));
            }
            Err(err) => refusal = Refusal::of(err),
        }
    }
    Err(refusal)
}

/// The handshake of the end that connects.
fn introduce(line: &mut Line, secret: &Secret) -> Result<(), Refusal> {
    let due = Instant::now() + PROOF_LIMIT;
    let again = |err: LinkError| Refusal { reason: reason(&err), is_final: false };
    let never = |reason: String| Refusal { reason, is_final: true };
    let own: Number = rand::random();
    line.write(&[&MAGIC[..], &own].concat(), due).map_err(again)?;
    let theirs = numbered(line, due).map_err(again)?;
    let theirs = theirs.ok_or_else(|| never("what listens there is no g2g".to_owned()))?;
    let proof = line.read_exactly(PROOF_LENGTH, due).map_err(again)?;
    if !secret.is_proof("rank that listens", &own, &theirs, &proof) {
        return Err(never(format!("it has another {SECRET}: give all ranks the same")));
    }
    let proof = secret.prove("rank that connects", &own, &theirs);
    line.write(&proof, due).map_err(again)
}

/// The random number of the other end; `None` if it is no g2g.
fn numbered(line: &mut Line, due: Instant) -> Result<Option<Number>, LinkError> {
    if line.read_exactly(MAGIC.len(), due)? != MAGIC {
        return Ok(None);
    }
    Ok(line.read_exactly(NUMBER_LENGTH, due)?.try_into().ok())
}

/// Sends a value; else why it cannot.
pub(super) fn say<T: Serialize>(line: &mut Line, value: &T, due: Instant) -> Result<(), String> {
    let text = serde_json::to_vec(value).map_err(|err| err.to_string())?;
    line.send(&text, due).map_err(|err| reason(&err))
}

/// Receives a value; else why it cannot.
pub(super) fn hear<T: DeserializeOwned>(line: &mut Line, due: Instant) -> Result<T, String> {
    let text = line.read(due).map_err(|err| reason(&err))?;
    serde_json::from_slice(&text)
        .map_err(|err| format!("it speaks otherwise, as another version of g2g may ({err})"))
}

fn reason(err: &LinkError) -> String {
    match err {
        LinkError::Gone => "it has ended the connection".to_owned(),
        LinkError::Message(err) => err.to_string(),
    }
}

impl Secret {
    pub(super) fn new(secret: &str) -> Option<Self> {
        let is_long = secret.chars().count() >= SECRET_LENGTH_MIN;
        Hmac::new_from_slice(secret.as_bytes()).ok().filter(|_| is_long).map(Self)
    }

    fn mac(&self, of: &str, connects: &Number, listens: &Number) -> Hmac<Sha256> {
        self.0.clone().chain_update(of).chain_update(connects).chain_update(listens)
    }

    /// The proof of an end for the random numbers of both.
    fn prove(&self, of: &str, connects: &Number, listens: &Number) -> Proof {
        self.mac(of, connects, listens).finalize().into_bytes().into()
    }

    /// Whether it is that, in a time that does not tell how much of it is right.
    fn is_proof(&self, of: &str, connects: &Number, listens: &Number, proof: &[u8]) -> bool {
        self.mac(of, connects, listens).verify_slice(proof).is_ok()
    }
}
