// Empty: its presence lets identities.go declare functions of other packages without bodies.
