// Reads what another cluster published as Cilium's own reader does: lines of {"kind","cluster","id","key","value"}
// on stdin, a line of {"ok","error","seen"} for each on stdout.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	mcsapi "github.com/cilium/cilium/pkg/clustermesh/mcsapi/types"
	"github.com/cilium/cilium/pkg/clustermesh/store"
	cmtypes "github.com/cilium/cilium/pkg/clustermesh/types"
)

type line struct {
	Kind, Cluster, Key string
	ID                 uint32
	Value              string
}

func read(l line) (any, error) {
	switch l.Kind {
	case "services":
		k := store.KeyCreator(store.ClusterNameValidator(l.Cluster), store.NamespacedNameValidator(), store.ClusterIDValidator(&l.ID))()
		return k, k.Unmarshal(l.Key, []byte(l.Value))
	case "serviceexports":
		k := mcsapi.KeyCreator(mcsapi.ClusterNameValidator(l.Cluster), mcsapi.NamespacedNameValidator())()
		return k, k.Unmarshal(l.Key, []byte(l.Value))
	}
	var c cmtypes.CiliumClusterConfig
	if err := json.Unmarshal([]byte(l.Value), &c); err != nil {
		return nil, err
	}
	return c, cmtypes.ClusterInfo{ID: 200, Name: "reader", MaxConnectedClusters: 255}.ValidateRemoteConfig(c)
}

func main() {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			panic(err)
		}
		seen, err := read(l)
		said := map[string]any{"ok": err == nil, "seen": seen}
		if err != nil {
			said["error"] = err.Error()
		}
		out.Encode(said)
	}
}
