// Package views looks at locks by their names, and ends what others have: it lists locks (list.go, lookup.go), reads who holds one and who
// waits for it (inspect.go), its whole state (inspection.go), and breaks leases and queue entries (break.go), of any keeper; and it logs who
// keeps a caller waiting for long (longwait.go). It uses the server and the layout of the keys alone: it knows no lease or request of this
// process.
package views
