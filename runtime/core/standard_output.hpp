/// What becomes of a program whose standard output goes nowhere any more.
#pragma once

namespace troupe {

/// Takes the numbers of standard streams that are closed (`program >&-`), so that no file or socket that is
/// opened later gets them: reading and writing there fail, as they do on a closed stream. Called before
/// anything is opened.
void hold_closed_streams();

/// From now on SIGPIPE ends this program if a standard stream has lost its reader (`program | head`), as it
/// ends any other, and does nothing if it was a socket. A program that ignores or handles SIGPIPE itself goes
/// on doing so.
void end_without_reader();

/// A write to a standard stream failed with `error`, in a thread that may have SIGPIPE blocked. EPIPE: raises
/// it for the program.
void output_failed(int error);
/// Whether output of this program was lost, or cannot be written: it is flushed first. Then its exit code is
/// not 0.
bool has_output_failed();

}  // namespace troupe
