package processes

import (
	crypto "crypto/rand"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// restored starts a process with what a snapshot would have: whatever processes draw until it returns, all draw the same. Its keeper has
// locked once, and is subscribed.
func (b *Bubble) restored() *Process {
	b.Helper()
	kernel := crypto.Reader
	crypto.Reader = rand.NewChaCha8([32]byte{})
	p := b.Process()
	b.Must(p.Hold("warm").Release(background))
	synctest.Wait()
	crypto.Reader = kernel
	return p
}

// copied returns two copies of one process. The second one has found its connections broken, and connected again.
func (b *Bubble) copied() (p, twin *Process) {
	b.Helper()
	p, twin = b.restored(), b.restored()
	channels := b.Mini.PubSubChannels("lock:wake:*")
	check.That(b, p.ID() == twin.ID() && len(channels) == 1 && b.Mini.PubSubNumSub(channels[0])[channels[0]] == 2,
		"they are no copies: keepers %s and %s, channels %q", p.ID(), twin.ID(), channels)
	twin.Net.Cut()
	lease := twin.Hold("warm") // by the address that both have
	synctest.Wait()
	b.Must(lease.Release(background))
	time.Sleep(10 * time.Second)
	n := b.Mini.PubSubNumSub(channels[0])[channels[0]]
	check.That(b, n == 1 && len(b.Mini.PubSubChannels("lock:wake:*")) == 2, "%d are subscribed to %q", n, channels)
	return p, twin
}

// TestCopiesOfProcess checks that two processes which were restored from one snapshot get different leases, and each its own.
func TestCopiesOfProcess(t *testing.T) {
	Run(t, func(b *Bubble) {
		p, twin := b.copied()
		fence := uint64(0)
		for range 20 {
			lease := p.Hold("x")
			same, err := twin.Mutex("x").TryLock(background)
			check.That(b, same == nil && errors.Is(err, lockkeeper.ErrNotAcquired) && lease.Fence() > fence, "both hold %q, fence %d after %d: %v", lease.Token(), lease.Fence(), fence, err)
			fence = lease.Fence()
			b.Must(lease.Release(background))
			p, twin = twin, p
		}
		first := b.Process().Hold("x")
		got, gotTwin := p.LockAsync("x"), twin.LockAsync("x")
		b.Must(first.Release(background))
		synctest.Wait()
		check.That(b, len(got) == 1 && len(gotTwin) == 0, "%d and %d leases for the first and its copy", len(got), len(gotTwin))
		lease := <-got
		b.Must(lease.Release(background))
		synctest.Wait()
		check.That(b, len(gotTwin) == 1, "no lease for the copy when the first has released its own")
		b.Must((<-gotTwin).Release(background))
	})
}

// TestCloseOfCopy checks that it ends neither leases nor waits of the other one, also while both are subscribed to one channel.
func TestCloseOfCopy(t *testing.T) {
	for name, copies := range map[string]func(b *Bubble) (p, twin *Process){
		"on one channel":  func(b *Bubble) (p, twin *Process) { return b.restored(), b.restored() },
		"on two channels": (*Bubble).copied,
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(b *Bubble) {
				p, twin := copies(b)
				lease, first := p.Hold("held"), b.Process().Hold("x")
				got := p.LockAsync("x")
				ended := make(chan error, 1)
				go func() {
					_, err := twin.Mutex("x").Lock(background)
					ended <- err
				}()
				synctest.Wait()
				b.Must(twin.Close())
				check.That(b, errors.Is(<-ended, lockkeeper.ErrClosed), "the wait of the copy goes on")
				b.Must(first.Release(background))
				synctest.Wait()
				check.That(b, len(got) == 1, "the waiter did not get its turn")
				holder, held, err := p.Mutex("held").Holder(background)
				check.That(b, err == nil && held && holder.Token == lease.Token() && lease.Err() == nil, "the lease has ended: %+v, %v, %v", holder, err, lease.Err())
				b.Must((<-got).Release(background))
				b.Must(lease.Release(background))
			})
		})
	}
}

// TestDeadCopyIsPassedOver checks that a process which has died costs the others nothing while its copy is subscribed.
func TestDeadCopyIsPassedOver(t *testing.T) {
	Run(t, func(b *Bubble) {
		p, twin := b.copied()
		first := b.Process().Hold("x")
		dead := p.LockAsync("x")
		got := twin.LockAsync("x")
		p.Net.Down()
		synctest.Wait()
		b.Must(first.Release(background))
		synctest.Wait()
		check.That(b, len(got) == 1, "the dead process has the turn")
		p.Net.Restore()
		b.Must((<-got).Release(background))
		b.Must((<-dead).Release(background))
	})
}
