package protocol

import (
	"testing"

	"github.com/google/uuid"
)

func TestKeeperIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewKeeperID()
		if !IsKeeperID(id) || seen[id] {
			t.Errorf("id %q", id)
		}
		seen[id] = true
	}
	for _, text := range []string{
		"", "x", "3qZaNx7zYpGXgfi8dCj6u", "3qZaNx7zYpGXgfi8dCj6ujj", // the length
		"-qZaNx7zYpGXgfi8dCj6uj", "+qZaNx7zYpGXgfi8dCj6uj", "3qZ_Nx7zYpGXgfi8dCj6uj", "3qZ:Nx7zYpGXgfi8dCj6uj",
		"ZZZZZZZZZZZZZZZZZZZZZZ",               // more than 128 bits
		"0000000000000000000000",               // no random UUID
		"8b0f2b0e-3f0a-4a55-9d8c-0c8a6a2f7b11", // a UUID in its usual form
	} {
		if IsKeeperID(text) {
			t.Errorf("%q is taken for an id", text)
		}
	}
}

func TestKeeperIDsHaveOneLength(t *testing.T) {
	uuid.SetRand(zeros{})
	defer uuid.SetRand(nil)
	if id := NewKeeperID(); len(id) != keeperIDLength || !IsKeeperID(id) {
		t.Errorf("id %q of few bits", id)
	}
}

// zeros is a source of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
