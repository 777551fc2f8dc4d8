// Package main prints what kstatus makes of each object of a JSON list on its standard input: a line "STATUS MESSAGE".
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		log.Fatal(err)
	}
	for _, object := range objects {
		read := &unstructured.Unstructured{}
		if err := read.UnmarshalJSON(object); err != nil {
			log.Fatal(err)
		}
		result, err := status.Compute(read)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Status, result.Message)
	}
}
