// Threads that take no signals: what is sent to the process reaches a thread of the program that uses us,
// whose waiting it ends, and never a worker of ours.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace kvasir {

// Blocks the signals that others send while it lives; a thread inherits that for good if it is started
// meanwhile. Those that a thread's own instructions raise, and a profiler's, stay.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t others;
    sigfillset(&others);
    for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
      sigdelset(&others, own);
    pthread_sigmask(SIG_BLOCK, &others, &before_);
  }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace kvasir
