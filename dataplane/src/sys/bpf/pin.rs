//! Pins of programs and tables in a BPF file system (bpf(2), `BPF_OBJ_PIN` and `BPF_OBJ_GET`).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The part of `union bpf_attr` that both commands read (linux/include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct ObjectAttributes {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Pins a program or a table: it stays when the last descriptor of it is closed.
///
/// # Errors
/// Of the kernel: EPERM outside a BPF file system, EEXIST, EACCES, EROFS.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let bpf_fd = u32::try_from(object.as_raw_fd()).map_err(io::Error::other)?;
    call(BPF_OBJ_PIN, path, bpf_fd).map(drop)
}

/// Opens what is pinned there.
///
/// # Errors
/// Of the kernel: ENOENT, EACCES; EPERM in older kernels without CAP_BPF.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let descriptor = call(BPF_OBJ_GET, path, 0)?;
    // WHY: the kernel gives a number.
    // SAFETY: `BPF_OBJ_GET` returned it just now as a new descriptor (close-on-exec), and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn call(command: libc::c_int, path: &Path, bpf_fd: u32) -> io::Result<RawFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = ObjectAttributes {
        pathname: path.as_ptr() as u64,
        bpf_fd,
        file_flags: 0,
    };
    // WHY: no crate that is used here pins an object of which it has nothing but a descriptor.
    // SAFETY: the kernel reads as many bytes as it is told, which are those of the attributes, and the path up to its NUL;
    // both live longer than the call, and neither command writes to them.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    match RawFd::try_from(outcome) {
        Ok(descriptor) if descriptor >= 0 => Ok(descriptor),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of `enum bpf_cmd`.
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_OBJ_GET: libc::c_int = 7;
