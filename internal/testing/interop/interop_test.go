// Package interop tests that a mutex and the locks of other libraries exclude each other on one key, and
// that what docs/interop.md says does not work fails as it says.
//
// The clients in python, node, java and bench/interopclient are small programs around a lock of each library, the last one also
// around a mutex. A client has three arguments: the library, the server's address, and the name of the lock. It
// reads commands from standard input and answers each with one line, which is "error: ..." after an exception:
//
//	try                         takes the lock if it is free: acquired, refused
//	lock                        waits for it: acquired
//	release                     gives it back: released, not held
//	count COUNTER ROUNDS PAUSE  adds one to a counter under the lock, with pauses of so many ms outside: counted
//	reset                       redis_lock.reset_all of python-redis-lock: reset
//
// A round of count reads the number, appends the library to the list COUNTER:order, and writes the number plus one; so
// a round of another process in between is lost.
package interop
