// Package process starts, signals and awaits the processes of commands.
package process
