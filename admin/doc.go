// Package admin is for operators and their tools: [List] finds the locks of all kinds under a keeper's prefix, [Inspect] returns who
// holds one and who waits for it, and [Break] ends a lease or a waiting request of any process.
//
//	for lock, err := range admin.List(ctx, k, nil) {
//		…
//		state, err := admin.Inspect(ctx, k, lock.Kind, lock.Name)
//	}
//
// A lock is identified by its kind and its name, without an object for it. Code that has such an object, like a *mutex.Mutex, does
// not need this package to ask who holds it: its methods Holder, Holders and Waiters do.
//
// List and Inspect write nothing. The command lockkeeper (ls, show, break) and package
// [github.com/lockkeeper/lockkeeper/inspector] are built on this package. Package [lockkeeper] documents leases, tokens and errors.
package admin
