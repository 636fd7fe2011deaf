package rwlock_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/measure"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

func reader(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
	l, err := rwlock.New(k, name, nil)
	return measure.Func(l.RLock), err
}

func writer(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
	return rwlock.New(k, name, nil)
}

func mutual(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
	return mutex.New(k, name, nil)
}

func BenchmarkUncontended(b *testing.B) {
	b.Run("read", func(b *testing.B) { measure.Uncontended(b, reader) })
	b.Run("write", func(b *testing.B) { measure.Uncontended(b, writer) })
}

func BenchmarkHandoff(b *testing.B) { measure.Handoff(b, writer, 1, 64) }

func BenchmarkContended(b *testing.B) { measure.Contended(b, writer, 8, 64) }

func BenchmarkWriterUnderReaders(b *testing.B) { measure.WriterUnderReaders(b, reader, writer) }

func BenchmarkReaders(b *testing.B) { measure.Readers(b, reader, mutual) }

func BenchmarkScale(b *testing.B) { measure.ScaleReaders(b, reader, lua.RWLock, 10, 1000, 10000) }

func BenchmarkAdmit(b *testing.B) { measure.Admit(b, 1000, writer, reader) }
