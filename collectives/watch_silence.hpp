/// How a connection to another host finds out that nobody is there any more.
#pragma once

namespace troupe::collectives {

/// Of a TCP socket: sends what is written at once, and ends it when nothing is under way and the other host
/// has been silent for about 15 s. `takes_all`: and when it has taken nothing of what was sent for so long,
/// as a host that is gone does, and as a program does that reads nothing. Does nothing to other sockets.
void watch_silence(int fd, bool takes_all = true);

}  // namespace troupe::collectives
