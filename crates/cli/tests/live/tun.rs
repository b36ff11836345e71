//! A tun device: an interface whose frames are bare IP packets.
#![expect(
    unsafe_code,
    reason = "a tun device is attached to by an ioctl, and no program at hand does it"
)]

use std::{
    fs::{File, OpenOptions},
    io::Write,
};

use rustix::{
    io,
    ioctl::{Opcode, Setter, ioctl, opcode},
};

use crate::namespace::Namespace;

/// `TUNSETIFF` of linux/if_tun.h: `_IOW('T', 202, int)`, though it takes a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);

/// `IFF_TUN | IFF_NO_PI`.
const FLAGS: u16 = 0x1001;

/// `struct ifreq` as `TUNSETIFF` reads it; 40 bytes on 64-bit machines.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == 40);

/// The test's end of a tun device. Dropping it removes the device.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
}

impl Tun {
    /// Creates the device with an address, and brings it up. If the device cannot be created,
    /// prints a message and returns `None`.
    pub(crate) fn new(namespace: &Namespace, name: &str, address: &str) -> Option<Self> {
        let mut request = Request {
            name: [0; 16],
            flags: FLAGS,
            rest: [0; 22],
        };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        let attached = namespace.enter(|| -> io::Result<File> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/net/tun")
                .map_err(|error| io::Errno::from_io_error(&error).unwrap_or(io::Errno::IO))?;
            // SAFETY: `TUNSETIFF` reads a `struct ifreq`. `Request` has its layout and size.
            let request = unsafe { Setter::<TUNSETIFF, Request>::new(request) };
            // SAFETY: the kernel reads the request and writes the device's name back into it.
            // `Request` is 40 bytes long, like `struct ifreq`.
            unsafe { ioctl(&file, request) }?;
            Ok(file)
        });
        match attached {
            Ok(file) => {
                namespace.ip(&format!("addr add {address} dev {name}"));
                namespace.ip(&format!("link set {name} up"));
                namespace.wait_for_carrier(name);
                Some(Self { file })
            }
            Err(error) => {
                eprintln!("SKIP: no tun device: {error}");
                None
            }
        }
    }

    /// Makes the interface receive an IP packet.
    pub(crate) fn receive(&mut self, packet: &[u8]) {
        self.file.write_all(packet).unwrap();
    }
}
